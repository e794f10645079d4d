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
