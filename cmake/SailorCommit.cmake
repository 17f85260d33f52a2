# Writes the commit that is built into a header, for --version: `cmake -DSOURCE=... -DHEADER=... -P SailorCommit.cmake`.
# It runs in every build, and touches the header only when the commit changed. In a source tree without git (a release's
# archive) the commit is empty.
set(commit "")
if(EXISTS "${SOURCE}/.git")
  find_program(git git)
  if(git)
    execute_process(COMMAND "${git}" -C "${SOURCE}" rev-parse --short=9 HEAD
                    OUTPUT_VARIABLE commit OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
  endif()
endif()
set(text "#pragma once\n#define SAILOR_COMMIT \"${commit}\"\n")
if(EXISTS "${HEADER}")
  file(READ "${HEADER}" before)
  if(before STREQUAL text)
    return()
  endif()
endif()
file(WRITE "${HEADER}" "${text}")
