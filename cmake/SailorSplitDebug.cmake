# SAILOR_SPLIT_DEBUG: `cmake --install` strips programs and shared libraries, and puts their debug information below
# PREFIX/lib/debug/.build-id, where gdb looks (for other prefixes than /usr: `set debug-file-directory PREFIX/lib/debug`).
# The debug information alone is the component `debug`.

set(split_debug OFF)
if(CMAKE_OBJCOPY AND CMAKE_READELF AND NOT SAILOR_SANITIZE)
  set(split_debug ON)
endif()
option(SAILOR_SPLIT_DEBUG "Install programs stripped, and their debug information in files of its own below lib/debug"
       ${split_debug})
if(SAILOR_SPLIT_DEBUG AND NOT (CMAKE_OBJCOPY AND CMAKE_READELF))
  message(FATAL_ERROR "SAILOR_SPLIT_DEBUG=ON but objcopy or readelf was not found. Install binutils or set CMAKE_OBJCOPY "
                      "and CMAKE_READELF, or SAILOR_SPLIT_DEBUG=OFF.")
endif()

if(SAILOR_SPLIT_DEBUG)
  # The release preset would have none. Functions and lines: what a backtrace shows.
  target_compile_options(sailor_options INTERFACE "$<$<AND:$<CONFIG:Release>,$<COMPILE_LANGUAGE:CXX>>:-g1>")
endif()

# sailor_install_split(sailor-plan bin): installs a program or module into a folder of the prefix.
function(sailor_install_split target folder)
  install(TARGETS ${target} RUNTIME DESTINATION "${folder}" LIBRARY DESTINATION "${folder}")
  if(NOT SAILOR_SPLIT_DEBUG)
    return()
  endif()
  target_link_options(${target} PRIVATE LINKER:--build-id=sha1)
  set(call "set(BUILT \"$<TARGET_FILE:${target}>\")
    set(INSTALLED \"${folder}/$<TARGET_FILE_NAME:${target}>\")
    set(DEBUG_FILES \"${PROJECT_BINARY_DIR}/debug\")
    set(OBJCOPY \"${CMAKE_OBJCOPY}\")
    set(READELF \"${CMAKE_READELF}\")")
  set(script "${PROJECT_SOURCE_DIR}/cmake/SailorInstallSplit.cmake")
  install(CODE "${call}\n  set(PART debug)\n  include(\"${script}\")" COMPONENT debug)
  install(CODE "${call}\n  set(PART program)\n  include(\"${script}\")")
endfunction()
