// The steps of a tokenizer.json of Hugging Face's tokenizers beside the merges of its vocabulary. A file with a step
// that Sailor would do otherwise is refused.
#pragma once

#include <cstddef>
#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "core/error.hpp"
#include "runtime/data/pre_tokenizer.hpp"

namespace sailor::runtime {

struct TokenizerSteps {
  SplitPattern pattern = SplitPattern::gpt2;
  bool composes = false;            ///< to NFC, before text is divided
  bool takes_whole_pieces = false;  ///< a piece that is a token is not made by merges
  std::vector<std::int32_t>
      before;  ///< tokens that the post-processor puts before a text; may not be in the vocabulary
  std::vector<std::int32_t> after;
};

/// `root` is the file, an object with an object "model". Errors: invalid_input, naming `file`.
Result<TokenizerSteps> read_tokenizer_steps(const nlohmann::json& root, std::string_view file);

/// Whether the object lacks the key, or it is null.
bool is_none(const nlohmann::json& object, const char* key);

/// A name from a file for messages: the first `most` bytes, and valid UTF-8.
std::string shown_name(std::string_view name, std::size_t most = 40);

}  // namespace sailor::runtime
