# Runs in `cmake --install`, for one program or shared library (SailorSplitDebug.cmake). BUILT is its file in the build,
# INSTALLED the path in the prefix, DEBUG_FILES a folder of the build, PART what to install: `debug`, the debug
# information; `program`: strips the installed file, and links it with its debug information.
execute_process(COMMAND "${READELF}" -n "${BUILT}" OUTPUT_VARIABLE notes COMMAND_ERROR_IS_FATAL ANY)
if(NOT notes MATCHES "Build ID: ([0-9a-f][0-9a-f])([0-9a-f]+)")
  message(FATAL_ERROR "${BUILT} has no build id, by which its debug information is found; the linker must know "
                      "--build-id=sha1, or configure with SAILOR_SPLIT_DEBUG=OFF")
endif()
set(folder ".build-id/${CMAKE_MATCH_1}")
set(debug_file "${DEBUG_FILES}/${folder}/${CMAKE_MATCH_2}.debug")
if(NOT EXISTS "${debug_file}" OR "${BUILT}" IS_NEWER_THAN "${debug_file}")
  file(MAKE_DIRECTORY "${DEBUG_FILES}/${folder}")
  execute_process(COMMAND "${OBJCOPY}" --only-keep-debug --compress-debug-sections "${BUILT}" "${debug_file}"
                  COMMAND_ERROR_IS_FATAL ANY)
endif()
if(PART STREQUAL "debug")
  file(INSTALL DESTINATION "${CMAKE_INSTALL_PREFIX}/lib/debug/${folder}" TYPE FILE FILES "${debug_file}")
else()
  # A file of its own takes the place of the installed one: Slurm's daemons would crash if the plugin changed in place.
  set(file "$ENV{DESTDIR}${CMAKE_INSTALL_PREFIX}/${INSTALLED}")
  execute_process(
    COMMAND "${OBJCOPY}" --preserve-dates --strip-unneeded --remove-section=.gnu_debuglink
            "--add-gnu-debuglink=${debug_file}" "${file}" "${file}.stripped"
    COMMAND_ERROR_IS_FATAL ANY)
  file(RENAME "${file}.stripped" "${file}")
endif()
