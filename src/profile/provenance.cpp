#include "profile/provenance.hpp"

#include <fmt/format.h>

#include <array>
#include <chrono>
#include <ctime>

namespace sailor::hdf5 {

namespace {

struct ProvenanceField {
  const char* name;
  std::string Provenance::*member;
};
constexpr std::array<ProvenanceField, 7> provenance_fields{{{"tool", &Provenance::tool},
                                                            {"command", &Provenance::command},
                                                            {"host", &Provenance::host},
                                                            {"device", &Provenance::device},
                                                            {"versions", &Provenance::versions},
                                                            {"date", &Provenance::date},
                                                            {"source", &Provenance::source}}};

}  // namespace

Result<void> write_header(FileWriter& file, const std::string& kind, const Provenance& provenance) {
  SAILOR_CHECK(file.attribute("schema_version", schema_version));
  SAILOR_CHECK(file.attribute("kind", kind));
  for (const ProvenanceField& field : provenance_fields)
    SAILOR_CHECK(file.attribute(field.name, provenance.*field.member));
  return {};
}

Result<std::string> read_kind(const FileReader& file) {
  auto kind = file.text_attribute("kind");
  if (!kind) return file.invalid("it is no file of Sailor's: it has no attribute 'kind'");
  if (*kind != profile_kind && *kind != run_kind && *kind != sweep_kind)
    return file.invalid(fmt::format("it is no file of Sailor's: its kind is '{}'", *kind));
  auto version = file.integer_attribute("schema_version");
  if (!version) return fail(version.error());
  if (*version != schema_version)
    return file.invalid(fmt::format("its schema_version is {} but this Sailor reads {}", *version, schema_version),
                        *version > schema_version ? "use a newer Sailor" : "measure again with this Sailor");
  return kind;
}

Result<Provenance> read_provenance(const FileReader& file) {
  Provenance provenance;
  for (const ProvenanceField& field : provenance_fields) {
    auto value = file.text_attribute(field.name);
    if (!value) return fail(value.error());
    provenance.*field.member = *std::move(value);
  }
  return provenance;
}

std::string current_date() {
  // Milliseconds, so that the later of two quick measurements is the newer one.
  const auto now = std::chrono::floor<std::chrono::milliseconds>(std::chrono::system_clock::now());
  const std::time_t seconds = std::chrono::system_clock::to_time_t(now);
  std::tm utc{};
  ::gmtime_r(&seconds, &utc);
  std::array<char, 32> text{};
  std::strftime(text.data(), text.size(), "%Y-%m-%dT%H:%M:%S", &utc);
  return fmt::format("{}.{:03}Z", text.data(), now.time_since_epoch().count() % 1000);
}

}  // namespace sailor::hdf5
