# The functions every CMakeLists.txt of this project is written with.

set(CMAKE_CXX_STANDARD 23)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_CXX_SCAN_FOR_MODULES OFF)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
set(CMAKE_RUNTIME_OUTPUT_DIRECTORY "${CMAKE_BINARY_DIR}/bin")

# Warnings, sanitizers and include path of our own code; foreign headers are SYSTEM.
function(expert_split_configure target)
  target_include_directories(${target} PUBLIC "${PROJECT_SOURCE_DIR}/src")
  target_compile_options(${target} PRIVATE -Wall -Wextra -Wshadow -Wconversion
                         -Wno-missing-field-initializers)
  if(EXPERT_SPLIT_WERROR)
    target_compile_options(${target} PRIVATE -Werror)
  endif()
  if(EXPERT_SPLIT_SANITIZE)
    target_compile_options(${target} PRIVATE -fsanitize=${EXPERT_SPLIT_SANITIZE}
                           -fno-sanitize-recover=all -fno-omit-frame-pointer
                           # g++ sees uninitialised values in the library's own instrumented code.
                           -Wno-maybe-uninitialized)
    target_link_options(${target} PRIVATE -fsanitize=${EXPERT_SPLIT_SANITIZE})
  endif()
  if(EXPERT_SPLIT_FUZZ)
    target_compile_options(${target} PRIVATE -fsanitize=fuzzer-no-link)
  endif()
endfunction()

# expert_split_library(NAME SOURCES file... DEPS target...)
# One folder of src/ as a static library.
function(expert_split_library name)
  cmake_parse_arguments(arg "" "" "SOURCES;DEPS" ${ARGN})
  add_library(${name} STATIC ${arg_SOURCES})
  expert_split_configure(${name})
  target_link_libraries(${name} PUBLIC ${arg_DEPS})
endfunction()

# What every test includes, compiled once for all of them.
function(expert_split_test_headers)
  if(TARGET es_test_headers)
    return()
  endif()
  file(WRITE "${CMAKE_BINARY_DIR}/test_headers.cc" "")
  add_library(es_test_headers OBJECT EXCLUDE_FROM_ALL "${CMAKE_BINARY_DIR}/test_headers.cc")
  expert_split_configure(es_test_headers)
  target_link_libraries(es_test_headers PRIVATE GTest::gtest GTest::gmock)
  target_precompile_headers(es_test_headers PRIVATE <gmock/gmock.h> <gtest/gtest.h>)
endfunction()

# expert_split_test(NAME SOURCES file... DEPS target... [LABELS label...] [SERIAL])
# One GoogleTest program, one ctest entry a test case. LABELS: unit (default), integration, slow,
# long (left out under sanitizers), gpu, fuzz. Tests read files under the repository through
# EXPERT_SPLIT_SOURCE_DIR.
function(expert_split_test name)
  cmake_parse_arguments(arg "SERIAL" "TIMEOUT" "SOURCES;DEPS;LABELS" ${ARGN})
  if(NOT arg_LABELS)
    set(arg_LABELS unit)
  endif()
  if(NOT arg_TIMEOUT)
    set(arg_TIMEOUT 300)
  endif()
  expert_split_test_headers()
  add_executable(${name} ${arg_SOURCES})
  expert_split_configure(${name})
  target_link_libraries(${name} PRIVATE ${arg_DEPS} GTest::gtest GTest::gmock GTest::gtest_main)
  target_precompile_headers(${name} REUSE_FROM es_test_headers)
  if(NOT EXPERT_SPLIT_TESTS)
    set_target_properties(${name} PROPERTIES EXCLUDE_FROM_ALL TRUE)
  endif()
  target_compile_definitions(${name} PRIVATE
    EXPERT_SPLIT_SOURCE_DIR="${PROJECT_SOURCE_DIR}"
    EXPERT_SPLIT_BINARY="${CMAKE_BINARY_DIR}/bin/expert-split")
  add_test(NAME ${name} COMMAND ${name})
  set_tests_properties(${name} PROPERTIES LABELS "${arg_LABELS}" TIMEOUT ${arg_TIMEOUT}
                       ENVIRONMENT "GGML_NO_BACKTRACE=1")
  if(arg_SERIAL)
    set_tests_properties(${name} PROPERTIES RUN_SERIAL TRUE)
  endif()
endfunction()

# expert_split_fuzz(NAME SOURCE file DEPS target... CORPUS folder)
# A libFuzzer entry point. Without EXPERT_SPLIT_FUZZ it links a plain main that replays its
# arguments; ctest replays the whole corpus either way.
function(expert_split_fuzz name)
  cmake_parse_arguments(arg "" "SOURCE;CORPUS" "DEPS" ${ARGN})
  add_executable(${name} ${arg_SOURCE})
  expert_split_configure(${name})
  target_link_libraries(${name} PRIVATE ${arg_DEPS})
  if(EXPERT_SPLIT_FUZZ)
    target_link_options(${name} PRIVATE -fsanitize=fuzzer)
    add_test(NAME ${name} COMMAND ${name} -runs=0 "${arg_CORPUS}")
  else()
    target_sources(${name} PRIVATE "${PROJECT_SOURCE_DIR}/fuzz/replay_main.cc")
    add_test(NAME ${name} COMMAND ${name} "${arg_CORPUS}")
  endif()
  set_tests_properties(${name} PROPERTIES LABELS fuzz TIMEOUT 300)
endfunction()

# expert_split_model(NAME OPTION...)
# A generated model for tests, build/PRESET/models/NAME.gguf, made by tools/make_model.py with these
# options when it or the tool has changed. Tests that read it: add_dependencies(TEST model_NAME).
function(expert_split_model name)
  set(file "${CMAKE_BINARY_DIR}/models/${name}.gguf")
  file(GLOB tool CONFIGURE_DEPENDS "${PROJECT_SOURCE_DIR}/tools/*.py")
  file(MAKE_DIRECTORY "${CMAKE_BINARY_DIR}/models")
  add_custom_command(OUTPUT "${file}"
    COMMAND "${Python3_EXECUTABLE}" -B "${PROJECT_SOURCE_DIR}/tools/make_model.py" ${ARGN}
            --out "${file}"
    DEPENDS ${tool} VERBATIM COMMENT "Making test model ${name}.gguf")
  add_custom_target(model_${name} DEPENDS "${file}")
endfunction()
