// sailor-profile: measures layers and links on this machine, and keeps profile stores.
#include <string_view>

#include "apps/profile/commands.hpp"
#include "apps/programs.hpp"
#include "apps/single_blas_thread.hpp"

namespace sailor::apps {

std::string& profile_command_line() {
  static std::string command = "sailor-profile";
  return command;
}

}  // namespace sailor::apps

int main(int argc, char** argv) {
  namespace apps = sailor::apps;
  if (argc > 1 && std::string_view(argv[1]) == "layers") apps::use_a_single_blas_thread(argv);
  for (int i = 1; i < argc; ++i) apps::profile_command_line() += std::string(" ") + argv[i];
  std::vector<apps::Command> commands{apps::layers_command(), apps::links_command()};
  for (apps::Command& command : apps::store_commands()) commands.push_back(std::move(command));
  for (apps::Command& command : apps::manage_commands()) commands.push_back(std::move(command));
  commands.push_back(apps::estimate_command());
  commands.push_back(apps::model_command());
  commands.push_back(apps::export_command());
  commands.push_back(apps::import_command());
  return apps::run_program(argc, argv, {"sailor-profile", apps::purpose_of("sailor-profile"), {}, ""}, commands);
}
