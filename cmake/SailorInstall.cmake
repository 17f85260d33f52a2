# What `cmake --install` puts into a prefix besides the programs, and the summary after configuring.

install(DIRECTORY profiles/ DESTINATION ${CMAKE_INSTALL_DATADIR}/sailor/profiles)
install(DIRECTORY slurm/sites/ DESTINATION ${CMAKE_INSTALL_DATADIR}/sailor/sites)
# What the programs wrote about themselves: manual pages, completions (see sailor_reference()).
if(NOT CMAKE_CROSSCOMPILING OR CMAKE_CROSSCOMPILING_EMULATOR)
  install(DIRECTORY "${PROJECT_BINARY_DIR}/share/man/" DESTINATION ${CMAKE_INSTALL_MANDIR}
          COMPONENT documentation OPTIONAL)
  foreach(folder bash-completion zsh fish doc)
    install(DIRECTORY "${PROJECT_BINARY_DIR}/share/${folder}" DESTINATION ${CMAKE_INSTALL_DATADIR}
            COMPONENT documentation OPTIONAL)
  endforeach()
else()
  message(STATUS "Manual pages and completions are not made: programs for ${CMAKE_SYSTEM_PROCESSOR} do not run here")
endif()
install(FILES LICENSE NOTICE README.md DESTINATION ${CMAKE_INSTALL_DOCDIR})

function(sailor_print_summary)
  message(STATUS "Sailor ${PROJECT_VERSION}, ${CMAKE_BUILD_TYPE}, ${CMAKE_CXX_COMPILER_ID} "
                 "${CMAKE_CXX_COMPILER_VERSION} for ${CMAKE_SYSTEM_PROCESSOR}")
  if(SAILOR_SANITIZE)
    sailor_found("sanitizers" "${SAILOR_SANITIZE}")
  endif()
  message("${sailor_summary}")
endfunction()
