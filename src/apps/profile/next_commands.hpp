// The commands that usually follow one of sailor-profile, for suggest_next().
#pragma once

#include <string>
#include <vector>

#include "profile/measurements.hpp"

namespace sailor::apps {

/// A command of sailor-plan for a model on devices of a type. `store`: where its measurements are, empty: nowhere;
/// `models`: folder of models, empty: the usual one.
std::string plan_command(const std::string& model, const std::string& gpu, int sequence_length,
                         const std::string& store, const std::string& models);

/// Commands for a store to which `data` was just added: one plans for the first model that was measured; if none was,
/// one measures a model.
std::vector<std::string> commands_after_storing(const ProfileData& data, const std::string& store,
                                                const std::string& models = {});

}  // namespace sailor::apps
