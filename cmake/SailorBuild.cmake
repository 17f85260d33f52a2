# How every target is compiled, and the functions that make libraries and programs.

include(GNUInstallDirs)

if(NOT CMAKE_BUILD_TYPE AND NOT CMAKE_CONFIGURATION_TYPES)
  set(CMAKE_BUILD_TYPE RelWithDebInfo CACHE STRING "" FORCE)
endif()
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
set(assertions ON)
if(CMAKE_BUILD_TYPE MATCHES "^(Release|MinSizeRel)$")
  set(assertions OFF)
endif()
option(SAILOR_ASSERTIONS "Check invariants of the code while it runs, and abort when one is broken (src/core/assert.hpp)"
       ${assertions})
set(CMAKE_RUNTIME_OUTPUT_DIRECTORY "${PROJECT_BINARY_DIR}/bin")
# An installed program finds its libraries beside it, wherever the prefix moves to.
if(NOT DEFINED CMAKE_INSTALL_RPATH)
  set(CMAKE_INSTALL_RPATH "$ORIGIN/../${CMAKE_INSTALL_LIBDIR}")
endif()
set(CMAKE_INSTALL_RPATH_USE_LINK_PATH ON)

find_program(SAILOR_CCACHE ccache)
mark_as_advanced(SAILOR_CCACHE)
if(SAILOR_CCACHE AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
  set(CMAKE_CXX_COMPILER_LAUNCHER "${SAILOR_CCACHE}")
  # Without these it keeps nothing that is compiled with the tests' precompiled headers.
  if(NOT DEFINED ENV{CCACHE_SLOPPINESS})
    list(PREPEND CMAKE_CXX_COMPILER_LAUNCHER "${CMAKE_COMMAND}" -E env CCACHE_SLOPPINESS=pch_defines,time_macros)
  endif()
endif()

# The fastest linker that works links: with GNU ld, linking programs and tests is a twentieth of a build's time.
set(SAILOR_LINKER "auto" CACHE STRING "Linker, as the compiler's -fuse-ld names it; auto: mold, lld or gold, if one works")
set(sailor_linker "${SAILOR_LINKER}")  # the one that is taken; empty: the compiler's own
if(sailor_linker STREQUAL "auto")
  set(sailor_linker "")
  include(CheckLinkerFlag)
  foreach(linker mold lld gold)
    check_linker_flag(CXX "-fuse-ld=${linker}" SAILOR_LINKS_BY_${linker})
    if(SAILOR_LINKS_BY_${linker})
      set(sailor_linker ${linker})
      break()
    endif()
  endforeach()
endif()
if(sailor_linker)
  add_link_options("$<$<LINK_LANGUAGE:CXX>:-fuse-ld=${sailor_linker}>")
endif()

# All warnings, language level and sanitizers come from here.
add_library(sailor_options INTERFACE)
target_compile_features(sailor_options INTERFACE cxx_std_20)
set(cxx_warnings -Wall -Wextra -Wpedantic -Wshadow -Wnon-virtual-dtor -Woverloaded-virtual -Wold-style-cast
    -Wcast-qual -Wconversion -Wno-sign-conversion -Wimplicit-fallthrough
    # Members with initialisers are left out on purpose.
    -Wno-missing-field-initializers)
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  # GCC 12 reports false positives of these two in std::string and std::variant at -O2 (GCC PR 105562, 105651).
  list(APPEND cxx_warnings -Wno-restrict -Wno-maybe-uninitialized)
endif()
if(CMAKE_UNITY_BUILD)
  # One file's anonymous namespace is no header's, and not hidden by another file's.
  list(APPEND cxx_warnings -Wno-shadow -Wno-subobject-linkage)
endif()
if(SAILOR_WERROR)
  list(APPEND cxx_warnings -Werror)
endif()
target_compile_options(sailor_options INTERFACE "$<$<COMPILE_LANGUAGE:CXX>:${cxx_warnings}>")
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  # The compiler collects its garbage only when it has 512 MiB of it: a tenth of a build's time, for 10% more memory.
  target_compile_options(sailor_options INTERFACE "$<$<COMPILE_LANGUAGE:CXX>:SHELL:--param ggc-min-heapsize=524288>")
endif()
if(SAILOR_ASSERTIONS)
  target_compile_definitions(sailor_options INTERFACE SAILOR_ASSERTIONS)
endif()
option(SAILOR_CHECK_INDICES "Let libstdc++ check indices within vectors: CI does, planning takes a fifth longer" OFF)
if(SAILOR_CHECK_INDICES)
  target_compile_definitions(sailor_options INTERFACE _GLIBCXX_ASSERTIONS)
endif()
if(SAILOR_SANITIZE)
  target_compile_options(sailor_options INTERFACE -fsanitize=${SAILOR_SANITIZE} -fno-omit-frame-pointer
                                                  -fno-sanitize-recover=all)
  target_link_options(sailor_options INTERFACE -fsanitize=${SAILOR_SANITIZE})
  if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
    # These are a third of a build's time; the address sanitizer finds what wrong pointers do as well.
    target_compile_options(sailor_options INTERFACE
      -fno-sanitize=null,alignment,object-size,vptr,pointer-overflow,nonnull-attribute,returns-nonnull-attribute)
  endif()
endif()

option(SAILOR_SYNTAX_ONLY
       "Let the compiler check the sources and make no code of them, in a third of the time: nothing can be run" OFF)
if(SAILOR_SYNTAX_ONLY)
  set(CMAKE_CXX_COMPILE_OBJECT "<CMAKE_CXX_COMPILER> <DEFINES> <INCLUDES> <FLAGS> -fsyntax-only -c <SOURCE>"
                               "\"${CMAKE_COMMAND}\" -E touch <OBJECT>")
  set(CMAKE_CXX_ARCHIVE_CREATE "\"${CMAKE_COMMAND}\" -E touch <TARGET>")
  set(CMAKE_CXX_ARCHIVE_FINISH "")
endif()

include(SailorSplitDebug)

# sailor_compile_apart(a.cpp b.cpp): these stay translation units of their own in unity builds, since they name
# something as another source of the library does.
function(sailor_compile_apart)
  set_source_files_properties(${ARGN} PROPERTIES SKIP_UNITY_BUILD_INCLUSION ON)
endfunction()

# sailor_compile_quickly(target): a library that reads, writes and reports, as all programs' own code does. The default
# preset compiles it with -Og, in half the time of -O2; the release preset optimizes it, too. With the address sanitizer,
# functions check its accesses: a sixth quicker to compile, half as fast to run. COMPUTES: in line, where tests run long.
set(asan_by_calls "")
if(SAILOR_SANITIZE MATCHES "address" AND CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  set(asan_by_calls "SHELL:--param asan-instrumentation-with-call-threshold=0")
endif()
function(sailor_compile_quickly target)
  cmake_parse_arguments(arg "COMPUTES" "" "" ${ARGN})
  if(arg_COMPUTES)
    set(asan_by_calls "")
  endif()
  target_compile_options(${target} PRIVATE "$<$<CONFIG:RelWithDebInfo>:-Og>" ${asan_by_calls})
endfunction()

# sailor_library(core SOURCES a.cpp b.cpp PUBLIC ... PRIVATE ...): static library sailor_core, alias sailor::core.
# Headers are included as "core/units.hpp".
function(sailor_library name)
  cmake_parse_arguments(arg "" "" "SOURCES;PUBLIC;PRIVATE" ${ARGN})
  add_library(sailor_${name} STATIC ${arg_SOURCES})
  add_library(sailor::${name} ALIAS sailor_${name})
  set_target_properties(sailor_${name} PROPERTIES POSITION_INDEPENDENT_CODE ON CXX_EXTENSIONS OFF)
  set_target_properties(sailor_${name} PROPERTIES EXPORT_NAME ${name})
  target_include_directories(sailor_${name} PUBLIC "$<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}/src>"
    "$<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}>" "$<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}/sailor>")
  target_link_libraries(sailor_${name} PUBLIC ${arg_PUBLIC}
                                       PRIVATE ${arg_PRIVATE} "$<BUILD_INTERFACE:sailor_options>")
endfunction()

# sailor_program(sailor-plan SOURCES ... LIBRARIES ...): an installed program in build/bin.
function(sailor_program name)
  cmake_parse_arguments(arg "" "" "SOURCES;LIBRARIES" ${ARGN})
  add_executable(${name} ${arg_SOURCES})
  set_target_properties(${name} PROPERTIES CXX_EXTENSIONS OFF)
  target_link_libraries(${name} PRIVATE ${arg_LIBRARIES} sailor_options)
  set_property(GLOBAL APPEND PROPERTY SAILOR_PROGRAMS ${name})
  sailor_compile_quickly(${name})
  sailor_install_split(${name} "${CMAKE_INSTALL_BINDIR}")
  sailor_reference(${name})
endfunction()

# sailor_reference(sailor-plan): the program writes its own manual page, completions and page of the documentation into
# build/share, from which they are installed (SailorInstall.cmake). A program for another machine cannot be asked.
function(sailor_reference name)
  if(CMAKE_CROSSCOMPILING AND NOT CMAKE_CROSSCOMPILING_EMULATOR)
    return()
  endif()
  set(share "${PROJECT_BINARY_DIR}/share")
  set(pages "${share}/man/man1/${name}.1" "${share}/bash-completion/completions/${name}"
            "${share}/zsh/site-functions/_${name}" "${share}/fish/vendor_completions.d/${name}.fish"
            "${share}/doc/sailor/programs/${name}.md")
  add_custom_command(OUTPUT ${pages}
    COMMAND ${name} --generate all "${share}"
    DEPENDS ${name}
    COMMENT "Manual page and completions of ${name}" VERBATIM)
  add_custom_target(reference_of_${name} ALL DEPENDS ${pages})
  set_property(GLOBAL APPEND PROPERTY SAILOR_PROGRAMS reference_of_${name})
endfunction()
