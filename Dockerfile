# The build environment as a container, from the same package list as scripts/env:
#   docker build -t expert-split . && docker run --rm -it expert-split --help
FROM debian:forky AS build
COPY scripts/packages/base.txt /tmp/packages.txt
RUN apt-get update && \
    apt-get install -y --no-install-recommends $(sed 's/#.*//' /tmp/packages.txt) && \
    rm -rf /var/lib/apt/lists/*
COPY . /src
WORKDIR /src
RUN scripts/build release
ENTRYPOINT ["/src/build/release/bin/expert-split"]
