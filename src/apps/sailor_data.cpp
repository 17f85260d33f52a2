// sailor-data: makes token files for sailor-train. Runs anywhere; a failure leaves no half-written file.
#include <fmt/format.h>

#include <filesystem>

#include "apps/options.hpp"
#include "core/terminal.hpp"
#include "runtime/data/token_file.hpp"

namespace sailor::apps {

namespace {

CommandLine bytes_line() {
  return {.program = "sailor-data bytes",
          .purpose = "makes a token file from texts, one token per byte and one document per file",
          .positionals = {{.name = "FILE", .help = "a text; each file becomes a document", .repeatable = true}},
          .options = {{.name = "output",
                       .letter = 'o',
                       .value_name = "PREFIX",
                       .help = "write PREFIX.bin and PREFIX.idx (Megatron-LM's format, uint8 tokens)"}},
          .examples = {{"sailor-data bytes --output corpus README.md", "the smallest corpus there is"},
                       {"sailor-data bytes --output corpus texts/*.txt", "a document per file"},
                       {"srun --mpi=pmix -n 2 sailor-train plan.toml --data corpus --iterations 100", "train on it"}},
          .notes = "The model needs a vocabulary of 256 or more. Documents are below 2 GiB each."};
}

Result<void> make_bytes(const Options& options, const Environment&) {
  const std::string prefix = options.text("output");
  if (prefix.empty()) return fail(ErrorCode::usage, "--output is missing", "say where to: --output PREFIX");
  std::vector<std::filesystem::path> documents;
  for (const std::string& name : options.positional("FILE")) documents.emplace_back(name);
  SAILOR_CHECK(runtime::write_byte_tokens(prefix, documents));
  const auto written = runtime::TokenFile::open(prefix);
  if (!written) return fail(written.error());
  fmt::print("{}.bin, {}.idx: {}, {} tokens\n", prefix, prefix,
             plural(static_cast<std::size_t>(written->documents()), "document"), written->size());
  return {};
}

}  // namespace

}  // namespace sailor::apps

int main(int argc, char** argv) {
  return sailor::apps::run_program(argc, argv, "sailor-data", "makes token files for sailor-train",
                                   {{sailor::apps::bytes_line(), sailor::apps::make_bytes}});
}
