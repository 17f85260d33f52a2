# Every header compiles alone: `cmake --build build --target headers_compile_alone`. Where every source is compiled by
# itself, one that includes its own header first shows it for that header. Others are in a translation unit each that
# includes nothing before them but what they include themselves: that is another header under test, if one is left (who
# edits includes configures again, as tests/run.sh does).
file(GLOB_RECURSE headers CONFIGURE_DEPENDS RELATIVE "${PROJECT_SOURCE_DIR}"
     "${PROJECT_SOURCE_DIR}/src/*.hpp" "${PROJECT_SOURCE_DIR}/slurm/*.hpp" "${PROJECT_SOURCE_DIR}/spank_plugin/*.hpp")
if(NOT SAILOR_HAVE_CUDA)
  list(FILTER headers EXCLUDE REGEX "^src/runtime/cuda/(fused_attention|gemm|kernels)")  # CUDA's own headers
endif()
set(names "")
foreach(header ${headers})
  string(REGEX REPLACE "^src/" "" included "${header}")
  string(REGEX REPLACE "[.]hpp$" ".cpp" source "${PROJECT_SOURCE_DIR}/${header}")
  if(EXISTS "${source}" AND NOT sailor_unity_build)
    file(STRINGS "${source}" first_include REGEX "^#include" LIMIT_COUNT 1)
    if(first_include STREQUAL "#include \"${included}\"")
      continue()
    endif()
  endif()
  list(APPEND names "${included}")
  # Includes below an #if may not be made.
  file(READ "${PROJECT_SOURCE_DIR}/${header}" text)
  string(REGEX REPLACE "\n#if.*" "" text "${text}")
  string(REGEX MATCHALL "\n#include \"[^\"]*\"" includes_${included} "${text}")
endforeach()
foreach(name ${names})
  foreach(line ${includes_${name}})
    string(REGEX REPLACE ".*\"(.*)\"" "\\1" other "${line}")
    if(other IN_LIST names AND NOT followed_${other})
      set(followed_${other} TRUE)
      set(before_${name} "${other}")
      break()
    endif()
  endforeach()
endforeach()
set(units "")
foreach(name ${names})
  if(followed_${name})
    continue()
  endif()
  set(content "")
  set(included "${name}")
  while(included)
    string(PREPEND content "#include \"${included}\"\n")
    set(included "${before_${included}}")
  endwhile()
  string(REPLACE "/" "_" unit "${name}")
  set(unit "${PROJECT_BINARY_DIR}/tests/headers/${unit}.cpp")
  file(CONFIGURE OUTPUT "${unit}" CONTENT "${content}" @ONLY)
  list(APPEND units "${unit}")
endforeach()
add_library(headers_compile_alone OBJECT EXCLUDE_FROM_ALL ${units})
target_include_directories(headers_compile_alone PRIVATE "${PROJECT_SOURCE_DIR}/src" "${PROJECT_SOURCE_DIR}")
target_link_libraries(headers_compile_alone PRIVATE sailor_text sailor_options)
if(SAILOR_HAVE_CUDA)
  target_include_directories(headers_compile_alone SYSTEM PRIVATE ${CUDAToolkit_INCLUDE_DIRS})
endif()
if(TARGET nlohmann_json::nlohmann_json)
  target_link_libraries(headers_compile_alone PRIVATE nlohmann_json::nlohmann_json)
endif()
# Only that they are complete is asked: no code is generated. What they need of the standard library is compiled once, for
# all of them; that each includes it, tests/check_includes.sh shows.
target_compile_options(headers_compile_alone PRIVATE -O0 -g0)
target_precompile_headers(headers_compile_alone PRIVATE
  <algorithm> <array> <atomic> <bit> <chrono> <cmath> <condition_variable> <cstddef> <cstdint> <cstdio>
  <cstdlib> <cstring> <deque> <exception> <filesystem> <functional> <initializer_list> <limits> <map>
  <memory> <mutex> <new> <numeric> <optional> <set> <span> <stdexcept> <string> <string_view> <thread> <tuple>
  <type_traits> <unordered_map> <utility> <variant> <vector>)
set_target_properties(headers_compile_alone PROPERTIES UNITY_BUILD OFF)
