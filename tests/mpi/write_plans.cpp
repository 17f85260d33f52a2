// Writes what tests/compare_builds.sh trains: the small models of the tests, and a plan for every way to divide each of
// them. Usage: write_plans FOLDER
#include <fmt/format.h>

#include <cstdio>
#include <filesystem>

#include "core/files.hpp"
#include "tests/unit/trainer_runs.hpp"

namespace sailor {
namespace {

std::string model_to_toml(const Model& model) {
  const auto one_of = [](auto value, std::initializer_list<const char*> names) {
    return *(names.begin() + static_cast<int>(value));
  };
  const auto flag = [](bool value) { return value ? "true" : "false"; };
  std::string text = fmt::format(
      "schema_version = 1\nname = \"{}\"\nsource = \"test\"\nblocks = {}\nhidden = {}\nembedding_width = {}\n"
      "attention_heads = {}\nkey_value_heads = {}\nfeed_forward = {}\nvocabulary = {}\nmax_sequence_length = {}\n"
      "norm = \"{}\"\nnorm_epsilon = {}\nnorm_placement = \"{}\"\nfinal_norm = \"{}\"\nactivation = \"{}\"\n"
      "position = \"{}\"\ntied_embedding = {}\nlinear_bias = {}\nattention_input_bias = {}\n"
      "attention_output_bias = {}\nscale_attention = {}\n",
      model.name, model.blocks, model.hidden, model.embedding_width, model.attention_heads, model.key_value_heads,
      model.feed_forward, 256, model.max_sequence_length, one_of(model.norm, {"layer_norm", "rms_norm"}),
      model.norm_epsilon, model.norm_placement == NormPlacement::pre ? "pre" : "post",
      model.final_norm == FinalNorm::none       ? "none"
      : model.final_norm == FinalNorm::separate ? "separate"
                                                : "in_head",
      model.activation == Activation::relu   ? "relu"
      : model.activation == Activation::gelu ? "gelu"
                                             : "swiglu",
      model.position == PositionKind::learned ? "learned" : "rotary", flag(model.tied_embedding),
      flag(model.linear_bias), flag(model.attention_input_bias), flag(model.attention_output_bias),
      flag(model.scale_attention));
  if (model.local_attention_window > 0)
    text += fmt::format("local_attention_window = {}\n", model.local_attention_window);
  if (model.position == PositionKind::rotary) text += fmt::format("rotary_base = {}\n", model.rotary_base);
  return text;
}

bool write(const std::filesystem::path& folder) {
  using namespace runtime::test;
  std::filesystem::create_directories(folder / "models");
  std::filesystem::create_directories(folder / "plans");
  std::string text;
  for (int i = 0; i < 3000; ++i) text += static_cast<char>('a' + (i * 7 + i / 40) % 23);
  if (!write_file_atomically(folder / "text", text)) return false;
  for (const Model& small : {gpt_model(), opt_model(), neo_model(), llama_model(), mixed_model()}) {
    const Model model = deep(small);
    if (!write_file_atomically(folder / "models" / (model.name + ".toml"), model_to_toml(model))) return false;
    for (auto [name, plan] : divisions(model.layers()))
      for (const Precision precision : {Precision::fp32, Precision::bf16}) {
        plan.job.model = model.name;
        plan.job.precision = precision;
        std::string file = fmt::format("{}-{}-{}.toml", model.name, name, to_string(precision));
        for (char& letter : file)
          if (letter == ' ' || letter == ',') letter = '_';
        if (!write_file_atomically(folder / "plans" / file, plan_to_toml(plan))) return false;
      }
  }
  return true;
}

}  // namespace
}  // namespace sailor

int main(int argc, char** argv) {
  if (argc == 2 && sailor::write(argv[1])) return 0;
  std::fputs("usage: write_plans FOLDER, which must be writable\n", stderr);
  return 1;
}
