#include <gtest/gtest.h>

#include "core/files.hpp"
#include "model/model.hpp"

namespace sailor {
namespace {

const std::filesystem::path models_folder = SAILOR_SOURCE_DIR "/profiles/models";

Model shipped(const std::string& name) {
  auto model = find_model(name, models_folder);
  EXPECT_TRUE(model.has_value()) << (model ? "" : model.error().message());
  return model.value_or(Model{});
}

// Published parameter counts. OPT counts its two extra position rows (OPT offsets positions by 2), which we leave out.
TEST(Model, ParametersMatchThePublishedModels) {
  const Model opt = shipped("opt-350m");
  EXPECT_EQ(opt.total_parameters(), 331196416 - 2 * 1024);  // facebook/opt-350m, shared embedding counted once
  // Block: 4 (h² + h) + h·f + f + f·h + h + 2·2h with h = 1024, f = 4096.
  EXPECT_EQ(opt.parameters(LayerKind::block), 12596224);
  // LLaMA-3-8B block: 2·4096² + 2·4096·1024 + 3·4096·14336 + 2·4096; whole model 8,030,261,248.
  const Model llama = shipped("llama-3-8b");
  EXPECT_EQ(llama.parameters(LayerKind::block), 218112000);
  EXPECT_EQ(llama.total_parameters(), 8030261248);
  // EleutherAI/gpt-neo-2.7B: 2,651,307,520.
  EXPECT_EQ(shipped("gpt-neo-2.7b").total_parameters(), 2651307520);
}

TEST(Model, LayersAreEmbeddingBlocksHead) {
  const Model model = shipped("tiny-gpt");
  ASSERT_EQ(model.layers(), 6);
  EXPECT_EQ(model.layer_kind(0), LayerKind::embedding);
  EXPECT_EQ(model.layer_kind(1), LayerKind::block);
  EXPECT_EQ(model.layer_kind(4), LayerKind::block);
  EXPECT_EQ(model.layer_kind(5), LayerKind::head);
}

TEST(Model, AllShippedModelsRead) {
  const auto models = load_models(models_folder);
  ASSERT_TRUE(models.has_value()) << models.error().message();
  EXPECT_GE(models->size(), 5U);
}

TEST(Model, ForwardFlopOfABlockCountsTwoPerParameterAndTheCausalHalf) {
  const Model model = shipped("tiny-gpt");
  // One token: 2 · (12 h²) for the weights (h = 128, f = 4h) + 2 · s · h for the causal half of two s·h products.
  EXPECT_DOUBLE_EQ(model.forward_flop(LayerKind::block, 1.0, 64).value(), 2.0 * 12 * 128 * 128 + 2.0 * 64 * 128);
}

TEST(Model, UnknownModelListsTheKnownOnes) {
  const auto model = find_model("opt-351m", models_folder);
  ASSERT_FALSE(model.has_value());
  EXPECT_EQ(model.error().code, ErrorCode::not_found);
  EXPECT_NE(model.error().message().find("model 'opt-351m' is not known"), std::string::npos);
  EXPECT_NE(model.error().message().find("tiny-gpt"), std::string::npos);
}

std::string error_with(const std::string& from, const std::string& to) {
  std::string text = read_text_file(models_folder / "tiny-gpt.toml").value();
  const std::size_t at = text.find(from);
  EXPECT_NE(at, std::string::npos) << from;
  text.replace(at, from.size(), to);
  const auto model = parse_model(text, "m.toml");
  return model ? "" : model.error().message();
}

TEST(Model, BadFilesAreRefusedWithLineAndReason) {
  EXPECT_EQ(error_with("hidden = 128", "hidden = -1"), "m.toml:6:10: 'hidden' is -1 but must be at least 1");
  EXPECT_EQ(error_with("hidden = 128", "hiden = 128"), "m.toml:6:9: unknown key 'hiden'; did you mean 'hidden'?");
  EXPECT_EQ(error_with("attention_heads = 4", "attention_heads = 3"),
            "m.toml:7:19: hidden (128) is not divisible by attention_heads (3)");
  EXPECT_EQ(error_with("\"gelu\"", "\"gelo\""), "m.toml:14:14: 'activation' is 'gelo'; use one of: relu, gelu, swiglu");
  EXPECT_EQ(error_with("schema_version = 1", "schema_version = 9"),
            "m.toml:2:18: schema_version is 9 but this Sailor reads 1; use a newer Sailor");
  EXPECT_EQ(error_with("blocks = 4", "blocks = \"4\""), "m.toml:5:10: 'blocks' must be an integer, not a string");
}

}  // namespace
}  // namespace sailor
