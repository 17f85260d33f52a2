// One function for each file format; file_formats() lists them.
#pragma once

#include "apps/reference/reference.hpp"

namespace sailor::apps {

FileFormat plan_format();     ///< plan.toml
FileFormat cluster_format();  ///< cluster.toml
FileFormat site_format();     ///< site files
FileFormat model_format();    ///< profiles/models/*.toml
FileFormat gpu_format();      ///< profiles/gpus.toml

/// The key that every file begins with.
FileKey schema_version_key();

}  // namespace sailor::apps
