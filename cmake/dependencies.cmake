# Everything the project links, from the system. Versions: docs/architecture.md, "Platform".

find_package(Threads REQUIRED)
find_package(Python3 REQUIRED COMPONENTS Interpreter)
find_package(nlohmann_json 3.11 REQUIRED)
find_package(CLI11 2.3 REQUIRED)
find_package(spdlog REQUIRED)
find_package(GTest REQUIRED)
find_package(benchmark REQUIRED)

find_path(GGML_INCLUDE_DIR ggml-backend.h REQUIRED)
find_library(GGML_LIBRARY ggml REQUIRED)
find_library(GGML_BASE_LIBRARY ggml-base REQUIRED)
add_library(ggml_system INTERFACE)
target_include_directories(ggml_system SYSTEM INTERFACE "${GGML_INCLUDE_DIR}")
target_link_libraries(ggml_system INTERFACE "${GGML_LIBRARY}" "${GGML_BASE_LIBRARY}")

# Tokeniser and samplers only; libllama computes nothing here.
find_path(LLAMA_INCLUDE_DIR llama.h REQUIRED)
find_library(LLAMA_LIBRARY llama REQUIRED)
add_library(llama_system INTERFACE)
target_include_directories(llama_system SYSTEM INTERFACE "${LLAMA_INCLUDE_DIR}")
target_link_libraries(llama_system INTERFACE "${LLAMA_LIBRARY}")

find_path(NUMA_INCLUDE_DIR numa.h REQUIRED)
find_library(NUMA_LIBRARY numa REQUIRED)
add_library(numa_system INTERFACE)
target_include_directories(numa_system SYSTEM INTERFACE "${NUMA_INCLUDE_DIR}")
target_link_libraries(numa_system INTERFACE "${NUMA_LIBRARY}")

# Chat templates: a header that includes nlohmann's.
find_path(MINJA_INCLUDE_DIR minja/minja.hpp REQUIRED)
add_library(minja_system INTERFACE)
target_include_directories(minja_system SYSTEM INTERFACE "${MINJA_INCLUDE_DIR}")
target_link_libraries(minja_system INTERFACE nlohmann_json::nlohmann_json)

# cpp-httplib as Debian builds it: the definitions change its types, so they must be the library's own
# (pkg-config cpp-httplib; the package has no CMake file).
find_path(HTTPLIB_INCLUDE_DIR httplib.h REQUIRED)
find_library(HTTPLIB_LIBRARY cpp-httplib REQUIRED)
add_library(httplib_system INTERFACE)
target_include_directories(httplib_system SYSTEM INTERFACE "${HTTPLIB_INCLUDE_DIR}")
target_compile_definitions(httplib_system INTERFACE CPPHTTPLIB_OPENSSL_SUPPORT CPPHTTPLIB_ZLIB_SUPPORT
  CPPHTTPLIB_BROTLI_SUPPORT CPPHTTPLIB_ZSTD_SUPPORT CPPHTTPLIB_USE_NON_BLOCKING_GETADDRINFO)
target_link_libraries(httplib_system INTERFACE "${HTTPLIB_LIBRARY}")

# The page's markdown: Debian's node-marked and node-dompurify, put into the program.
find_file(MARKED_JS marked.umd.min.js PATHS /usr/share/nodejs/marked/lib NO_DEFAULT_PATH REQUIRED)
find_file(DOMPURIFY_JS purify.min.js PATHS /usr/share/nodejs/dompurify/dist NO_DEFAULT_PATH REQUIRED)
