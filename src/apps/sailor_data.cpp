// sailor-data: makes token files for sailor-train. Runs anywhere; a failure leaves no half-written file.
#include <fmt/format.h>

#include <filesystem>
#include <string>
#include <string_view>
#include <system_error>
#include <vector>

#include "apps/options.hpp"
#include "apps/programs.hpp"
#include "core/shell.hpp"
#include "core/terminal.hpp"
#include "core/text.hpp"
#include "runtime/data/bpe_tokenizer.hpp"
#include "runtime/data/texts.hpp"
#include "runtime/data/token_file_writer.hpp"

namespace sailor::apps {

namespace {

using runtime::BpeTokenizer;
using runtime::BpeVocabulary;
using runtime::TokenType;

constexpr std::int64_t most_in_16_bits = 65500;  // Megatron-LM's bound

Option output_option(std::string help) {
  return {.name = "output", .letter = 'o', .value_name = "PREFIX", .help = std::move(help)};
}

struct BytesOptions : CommonOptions {
  OptionValue<std::vector<std::string>> file;
  OptionValue<std::string> output;
};

CommandLine bytes_line(BytesOptions& options) {
  return {.program = "sailor-data bytes",
          .purpose = "makes a token file from texts, one token per byte and one document per file",
          .positionals = {positional(options.file, {.name = "FILE", .help = "a text; each file becomes a document"})},
          .options = {option(options.output,
                             output_option("write PREFIX.bin and PREFIX.idx (Megatron-LM's format, uint8 tokens)"))},
          .examples = {{"sailor-data bytes --output corpus README.md", "the smallest corpus there is"},
                       {"sailor-data bytes --output corpus texts/*.txt", "a document per file"},
                       {"srun --mpi=pmix -n 2 sailor-train plan.toml --data corpus --iterations 100", "train on it"}},
          .notes = "The model needs a vocabulary of 256 or more. Documents are below 2 GiB each."};
}

struct BpeOptions : CommonOptions {
  OptionValue<std::vector<std::string>> file;
  OptionValue<std::string> output, tokenizer, vocabulary, merges, begin_of_document, end_of_document, json_key;
};

CommandLine bpe_line(BpeOptions& options) {
  return {
      .program = "sailor-data bpe",
      .purpose = "makes a token file from texts with a byte-level BPE vocabulary, as GPT-2, LLaMA-3 and Qwen have",
      .positionals = {positional(options.file, {.name = "FILE",
                                                .help = "a text, which becomes a document; of .json and .jsonl files "
                                                        "each line is an object whose text becomes one"})},
      .options = {option(options.output, output_option("write PREFIX.bin and PREFIX.idx (Megatron-LM's format)")),
                  option(options.tokenizer, {.name = "tokenizer",
                                             .value_name = "FILE",
                                             .help = "tokenizer.json of Hugging Face that splits text as GPT-2, "
                                                     "LLaMA-3, Qwen2 or Qwen3; or use --vocabulary and --merges"}),
                  option(options.vocabulary,
                         {.name = "vocabulary", .value_name = "FILE", .help = "vocab.json of GPT-2; needs --merges"}),
                  option(options.merges, {.name = "merges", .value_name = "FILE", .help = "merges.txt of GPT-2"}),
                  option(options.begin_of_document,
                         {.name = "begin-of-document",
                          .value_name = "TOKEN",
                          .help = "token before each document; none: there is none [default: what the post-processor "
                                  "of tokenizer.json puts there, as LLaMA-3's <|begin_of_text|>]"}),
                  option(options.end_of_document,
                         {.name = "end-of-document",
                          .value_name = "TOKEN",
                          .help = "token behind each document; none: there is none [default: what the post-processor "
                                  "of tokenizer.json puts there, or <|endoftext|>, or <|end_of_text|>]"}),
                  option(options.json_key, {.name = "json-key",
                                            .value_name = "KEY",
                                            .help = "where a line of JSON has its text",
                                            .default_value = "text"})},
      .examples = {{"sailor-data bpe --tokenizer tokenizer.json --output tokens texts/*.txt",
                    "with the tokenizer of a model from Hugging Face"},
                   {"sailor-data bpe --vocabulary vocab.json --merges merges.txt --output tokens documents.jsonl",
                    "the input of Megatron-LM's preprocess_data.py"},
                   {"sailor-data bpe --tokenizer tokenizer.json --end-of-document none -o tokens README.md",
                    "one document, nothing behind it"}},
      .notes =
          "Tokens have 16 bits in vocabularies below 65500, else 32. The model needs a vocabulary at least as "
          "large.\nSpecial and added tokens in the texts are tokenised like any other text; texts are composed (NFC) "
          "where the\ntokenizer does so. Empty documents are left out. Files may be larger than memory; a document "
          "has less than\n2^31 tokens, a line of JSON less than 1 GiB."};
}

Result<std::string> output_prefix(const OptionValue<std::string>& output) {
  std::string prefix = *output;
  if (prefix.empty()) return fail(ErrorCode::usage, "--output is missing", "say where to: --output PREFIX");
  return prefix;
}

std::vector<std::filesystem::path> input_files(const std::vector<std::string>& names) {
  std::vector<std::filesystem::path> files;
  for (const std::string& name : names) files.emplace_back(name);
  return files;
}

/// Says how to train on the tokens of a vocabulary.
void suggest_training(const std::string& prefix, std::int64_t vocabulary) {
  suggest_next({fmt::format("sailor models  # the model needs a vocabulary of {} or more", vocabulary),
                fmt::format("sailor-submit plan.toml --data {} --iterations 100", shell_quote(prefix))});
}

Result<void> make_bytes(const BytesOptions& options, const Environment&) {
  const auto prefix = output_prefix(options.output);
  if (!prefix) return fail(prefix.error());
  SAILOR_CHECK(runtime::write_byte_tokens(*prefix, input_files(*options.file)));
  const auto written = runtime::TokenFile::open(*prefix);
  if (!written) return fail(written.error());
  fmt::print("{0}.bin, {0}.idx: {1}, {2} tokens\n", *prefix,
             plural(static_cast<std::size_t>(written->documents()), "document"), written->size());
  suggest_training(*prefix, 256);
  return {};
}

Result<BpeVocabulary> load_vocabulary(const BpeOptions& options) {
  const bool halves = options.vocabulary.has() || options.merges.has();
  if (options.tokenizer.has() && halves)
    return fail(ErrorCode::usage, "--tokenizer goes with neither --vocabulary nor --merges",
                "leave out the one or the other");
  if (options.tokenizer.has()) return BpeVocabulary::load_tokenizer(*options.tokenizer);
  if (!options.vocabulary.has() || !options.merges.has())
    return fail(ErrorCode::usage, halves ? "--vocabulary and --merges go together" : "no vocabulary is named",
                "give --tokenizer FILE, or --vocabulary FILE --merges FILE");
  return BpeVocabulary::load(*options.vocabulary, *options.merges);
}

using Tokens = std::vector<std::int32_t>;

/// `tokens`: with quotes. `option`: that names another.
tl::unexpected<Error> no_token(const std::string& tokens, const AnyOptionValue& option,
                               const BpeVocabulary& vocabulary) {
  const std::vector<std::string>& special = vocabulary.special();
  return fail(ErrorCode::not_found, "the vocabulary has no token " + tokens,
              fmt::format("choose one with --{} (special tokens: {}), or none", option.name(),
                          special.empty() ? "none" : name_some(special)));
}

/// The token that an option names; none for "none".
Result<Tokens> named_token(const OptionValue<std::string>& option, const BpeVocabulary& vocabulary) {
  if (*option == "none") return Tokens{};
  if (const auto token = vocabulary.find(*option)) return Tokens{*token};
  return no_token(fmt::format("'{}'", *option), option, vocabulary);
}

Result<Tokens> begin_of_document(const BpeOptions& options, const BpeVocabulary& vocabulary) {
  if (options.begin_of_document.has()) return named_token(options.begin_of_document, vocabulary);
  return vocabulary.before_text();
}

Result<Tokens> end_of_document(const BpeOptions& options, const BpeVocabulary& vocabulary) {
  if (options.end_of_document.has()) return named_token(options.end_of_document, vocabulary);
  if (!vocabulary.after_text().empty()) return vocabulary.after_text();
  for (const char* name : {"<|endoftext|>", "<|end_of_text|>"})
    if (const auto token = vocabulary.find(name)) return Tokens{*token};
  return no_token("'<|endoftext|>' or '<|end_of_text|>'", options.end_of_document, vocabulary);
}

/// Tokenises files into a sink, document by document.
class Documents {
 public:
  /// `begin` and `end` go around each document; `bytes`: size of all files.
  Documents(BpeTokenizer& tokenizer, Tokens begin, Tokens end, runtime::TokenSink& sink, std::size_t bytes)
      : tokenizer_(tokenizer),
        begin_(std::move(begin)),
        end_(std::move(end)),
        sink_(sink),
        progress_("tokenising", bytes) {}

  Result<void> add_text(const std::filesystem::path& file) {
    const auto read = runtime::read_in_parts(file, [&](std::string_view part) { return add(part); });
    if (!read) return fail(read.error());
    return finish(file.string());
  }

  Result<void> add_json_lines(const std::filesystem::path& file, const std::string& key) {
    return runtime::read_json_lines(file, key, [&](const std::string& text, std::int64_t line) -> Result<void> {
      SAILOR_CHECK(add(text));
      return finish(fmt::format("{}:{}", file.string(), line));
    });
  }

  [[nodiscard]] std::int64_t bytes() const { return bytes_; }
  [[nodiscard]] std::size_t empty() const { return empty_; }

 private:
  Result<void> add(std::string_view part) {
    tokens_.clear();
    if (!has_text_ && !part.empty()) {
      tokens_ = begin_;
      has_text_ = true;
    }
    tokenizer_.add(part, tokens_);
    bytes_ += std::ssize(part);
    if (progress_.is_due())
      progress_.update(static_cast<std::size_t>(bytes_), format_bytes(Bytes(static_cast<double>(bytes_))));
    return sink_.add(tokens_);
  }

  Result<void> finish(const std::string& name) {
    tokens_.clear();
    tokenizer_.finish(tokens_);
    if (has_text_)
      tokens_.insert(tokens_.end(), end_.begin(), end_.end());
    else
      ++empty_;
    has_text_ = false;
    if (auto added = sink_.add(tokens_); !added) return fail(added.error(), name);
    sink_.end_document();
    return {};
  }

  BpeTokenizer& tokenizer_;
  Tokens begin_;
  Tokens end_;
  runtime::TokenSink& sink_;
  Tokens tokens_;
  bool has_text_ = false;  // the current document
  std::int64_t bytes_ = 0;
  std::size_t empty_ = 0;
  Progress progress_;
};

/// Size of the files, for the progress; of those that cannot be read 0.
std::size_t total_bytes(const std::vector<std::filesystem::path>& files) {
  std::size_t bytes = 0;
  for (const std::filesystem::path& file : files) {
    std::error_code code;
    const auto size = std::filesystem::file_size(file, code);
    if (!code) bytes += size;
  }
  return bytes;
}

Result<void> make_bpe(const BpeOptions& options, const Environment&) {
  const auto prefix = output_prefix(options.output);
  if (!prefix) return fail(prefix.error());
  auto vocabulary = load_vocabulary(options);
  if (!vocabulary) return fail(vocabulary.error());
  const auto begin = begin_of_document(options, *vocabulary);
  if (!begin) return fail(begin.error());
  const auto end = end_of_document(options, *vocabulary);
  if (!end) return fail(end.error());
  BpeTokenizer tokenizer(std::move(*vocabulary));
  const std::int64_t size = tokenizer.vocabulary().size();
  const TokenType type = size < most_in_16_bits ? TokenType::uint16 : TokenType::int32;
  const std::vector<std::filesystem::path> files = input_files(*options.file);
  std::int64_t bytes = 0;
  std::size_t empty = 0;
  const auto made = runtime::write_token_file(*prefix, type, files, [&](runtime::TokenSink& sink) -> Result<void> {
    Documents documents(tokenizer, *begin, *end, sink, total_bytes(files));
    for (const std::filesystem::path& file : files) {
      const bool lines = file.extension() == ".jsonl" || file.extension() == ".json";
      SAILOR_CHECK(lines ? documents.add_json_lines(file, *options.json_key) : documents.add_text(file));
    }
    bytes = documents.bytes();
    empty = documents.empty();
    return {};
  });
  if (!made) return fail(made.error());
  const auto written = runtime::TokenFile::open(*prefix);
  if (!written) return fail(written.error());
  fmt::print("{0}.bin, {0}.idx: {1}, {2} tokens of {3} bits, {4:.2f} bytes of text per token, vocabulary {5}\n",
             *prefix, plural(static_cast<std::size_t>(written->documents()), "document"), written->size(),
             8 * token_bytes(type), static_cast<double>(bytes) / static_cast<double>(written->size()), size);
  if (empty > 0) fmt::print("{} left out\n", plural(empty, "empty document"));
  suggest_training(*prefix, size);
  return {};
}

}  // namespace

}  // namespace sailor::apps

int main(int argc, char** argv) {
  namespace apps = sailor::apps;
  return apps::run_program(
      argc, argv, {"sailor-data", apps::purpose_of("sailor-data"), {}, ""},
      {apps::command(apps::bytes_line, apps::make_bytes), apps::command(apps::bpe_line, apps::make_bpe)});
}
