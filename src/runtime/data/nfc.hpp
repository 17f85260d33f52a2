// Unicode's canonical composition (NFC) of texts that arrive in parts: "e" and a combining acute accent become "é".
// Bytes that are not part of valid UTF-8 are kept, as are characters that are newer than Unicode 9, which Hugging
// Face's tokenizers do not know here; characters are not composed across them.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace sailor::runtime {

class NfcStream {
 public:
  /// Appends to `composed` as much of the text as later parts cannot change.
  void add(std::string_view part, std::string& composed);
  /// Appends the rest; the next part begins another text.
  void finish(std::string& composed);

 private:
  std::string pending_;         // end of the text so far, not composed yet
  std::size_t look_again_ = 0;  // size of pending_ at which to look for a place to cut again
};

/// The same of a whole text.
std::string to_nfc(std::string_view text);

}  // namespace sailor::runtime
