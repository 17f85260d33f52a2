# Every header compiles alone: `cmake --build build --target headers_compile_alone`. Where every source is compiled by
# itself, one that includes its own header first shows it for that header; for every other header there is a translation
# unit that includes nothing else.
file(GLOB_RECURSE headers CONFIGURE_DEPENDS RELATIVE "${PROJECT_SOURCE_DIR}"
     "${PROJECT_SOURCE_DIR}/src/*.hpp" "${PROJECT_SOURCE_DIR}/slurm/*.hpp" "${PROJECT_SOURCE_DIR}/spank_plugin/*.hpp")
set(units "")
foreach(header ${headers})
  string(REGEX REPLACE "^src/" "" included "${header}")
  string(REGEX REPLACE "[.]hpp$" ".cpp" source "${PROJECT_SOURCE_DIR}/${header}")
  if(EXISTS "${source}" AND NOT sailor_unity_build)
    file(STRINGS "${source}" first_include REGEX "^#include" LIMIT_COUNT 1)
    if(first_include STREQUAL "#include \"${included}\"")
      continue()
    endif()
  endif()
  string(REPLACE "/" "_" unit "${header}")
  set(unit "${PROJECT_BINARY_DIR}/tests/headers/${unit}.cpp")
  file(CONFIGURE OUTPUT "${unit}" CONTENT "#include \"${included}\"\n" @ONLY)
  list(APPEND units "${unit}")
endforeach()
add_library(headers_compile_alone OBJECT EXCLUDE_FROM_ALL ${units})
target_include_directories(headers_compile_alone PRIVATE "${PROJECT_SOURCE_DIR}/src" "${PROJECT_SOURCE_DIR}")
target_link_libraries(headers_compile_alone PRIVATE sailor_text sailor_options)
if(TARGET nlohmann_json::nlohmann_json)
  target_link_libraries(headers_compile_alone PRIVATE nlohmann_json::nlohmann_json)
endif()
# Only that they are complete is asked: no code is generated.
target_compile_options(headers_compile_alone PRIVATE -O0 -g0)
set_target_properties(headers_compile_alone PROPERTIES UNITY_BUILD OFF)
