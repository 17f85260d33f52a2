// The published measurements that come with Sailor, and clusters of the devices that were measured.
#pragma once

#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "cluster/cluster.hpp"
#include "model/model.hpp"
#include "plan/plan.hpp"
#include "profile/store.hpp"
#include "profile/text.hpp"

namespace sailor::testing {

inline const std::filesystem::path published_folder = SAILOR_SOURCE_DIR "/profiles";

inline const GpuCatalogue& published_gpus() {
  static const GpuCatalogue catalogue = GpuCatalogue::load(published_folder / "gpus.toml").value();
  return catalogue;
}

inline const Profile& published() {
  static const Profile profile = [] {
    std::vector<ProfileData> parts;
    for (const char* folder : {"layers", "networks"})
      for (const auto& entry : std::filesystem::directory_iterator(published_folder / folder))
        parts.push_back(load_profile_text(entry.path()).value());
    return Profile(merge_profiles(std::move(parts)));
  }();
  return profile;
}

inline Model published_model(const std::string& name) { return find_model(name, published_folder / "models").value(); }

inline TrainingJob published_job(const std::string& model, int batch) {
  return {.model = published_model(model).name,
          .global_batch = batch,
          .sequence_length = 2048,
          .precision = Precision::tf32};
}

/// Nodes of one type in one zone.
struct Part {
  std::string gpu;
  int devices = 0;
  std::string zone = "us-central1-a";
  int per_node = 4;
};

inline Cluster cluster_of(const std::vector<Part>& parts) {
  Cluster cluster;
  for (const Part& part : parts) {
    NodeGroup group;
    group.gpu = published_gpus().find(part.gpu).value().name;
    group.gpus_per_node = part.per_node;
    group.count = part.devices / part.per_node;
    group.zone = part.zone;
    cluster.groups.push_back(group);
  }
  return cluster;
}

}  // namespace sailor::testing
