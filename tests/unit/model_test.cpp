#include <gtest/gtest.h>

#include <string>
#include <string_view>

#include "core/files.hpp"
#include "model/hugging_face_config.hpp"
#include "model/model.hpp"

namespace sailor::model_test {
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

/// A Mixtral of 2 blocks, 8 wide: 4 heads, 2 key-value heads, 4 experts of 16 wide of which a token takes 2.
constexpr std::string_view small_mixtral = R"({
  "architectures": ["MixtralForCausalLM"], "model_type": "mixtral", "vocab_size": 100, "hidden_size": 8,
  "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "intermediate_size": 16,
  "num_local_experts": 4, "num_experts_per_tok": 2, "max_position_embeddings": 64, "sliding_window": null,
  "rope_theta": 1000000.0, "hidden_act": "silu", "rms_norm_eps": 1e-05, "tie_word_embeddings": false,
  "torch_dtype": "bfloat16", "_name_or_path": "somewhere"})";

std::string config_error(const std::string& from, const std::string& to) {
  std::string text(small_mixtral);
  const std::size_t at = text.find(from);
  EXPECT_NE(at, std::string::npos) << from;
  text.replace(at, from.size(), to);
  const auto model = parse_hugging_face_config(text, "config.json");
  return model ? "" : model.error().message();
}

// What changes the results and no plan is kept by its name; what is as usual is not.
TEST(HuggingFaceConfig, WhatNoPlanSaysIsNamed) {
  const auto named = [](const std::string& more) {
    std::string text(small_mixtral);
    text.insert(text.find("\"torch_dtype\""), more + (more.empty() ? "" : ", "));
    const auto model = parse_hugging_face_config(text, "config.json");
    EXPECT_TRUE(model.has_value()) << model.error().message();
    return model ? *model : Model{};
  };
  EXPECT_EQ(named("").unplanned_text(), "");
  EXPECT_EQ(
      named(R"("rope_scaling": null, "rope_parameters": {"rope_type": "default", "rope_theta": 1e6})").unplanned_text(),
      "");
  EXPECT_EQ(named(R"("norm_topk_prob": true, "routed_scaling_factor": 1, "n_group": null)").unplanned_text(), "");
  const Model scaled = named(R"("rope_scaling": {"rope_type": "llama3", "factor": 8.0})");
  EXPECT_EQ(scaled.unplanned_text(), R"(rope_scaling = {"factor":8.0,"rope_type":"llama3"})");
  const auto trainable = check_trainable(scaled);
  ASSERT_FALSE(trainable);
  EXPECT_NE(trainable.error().what.find("rope_scaling"), std::string::npos) << trainable.error().what;
  // A choice of the training does not make it another model.
  const Model balanced = named(R"("router_aux_loss_coef": 0.02)");
  EXPECT_EQ(balanced.unplanned_text(), "router_aux_loss_coef = 0.02");
  EXPECT_TRUE(check_trainable(balanced));
  EXPECT_EQ(named(R"("scoring_func": "sigmoid", "num_nextn_predict_layers": 1)").unplanned_text(),
            "scoring_func = \"sigmoid\", num_nextn_predict_layers = 1");
  // Of each kind of block: scaled in one of them, or on a part of the heads.
  EXPECT_EQ(
      named(R"("rope_parameters": {"full_attention": {"rope_type": "default", "rope_theta": 1e6}})").unplanned_text(),
      "");
  EXPECT_NE(
      named(
          R"("rope_parameters": {"sliding_attention": {"rope_type": "default"}, "full_attention": {"rope_type": "linear",
      "factor": 8}})")
          .unplanned_text(),
      "");
  EXPECT_NE(named(R"("rope_parameters": {"rope_type": "default", "partial_rotary_factor": 0.25})").unplanned_text(),
            "");
  EXPECT_EQ(balanced.unplanned_text(false), "");
  // What GPT-NeoX does where its file says nothing.
  const auto neox = parse_hugging_face_config(
      R"({"model_type": "gpt_neox", "vocab_size": 100, "hidden_size": 8, "num_hidden_layers": 2, "num_attention_heads": 4,
          "intermediate_size": 16, "max_position_embeddings": 64, "rotary_emb_base": 500000})",
      "config.json");
  ASSERT_TRUE(neox) << neox.error().message();
  EXPECT_EQ(neox->unplanned_text(), "rotary_pct = 0.25, use_parallel_residual = true");
  EXPECT_EQ(neox->rotary_base, 500000.0);
  EXPECT_NE(config_error("1000000.0", "-1").find("rope_theta is -1"), std::string::npos);
  EXPECT_NE(config_error("\"sliding_window\": null", "\"rope_scaling\": 8").find("must be an object"),
            std::string::npos);
}

TEST(HuggingFaceConfig, MixtralIsReadWithItsExperts) {
  const auto model = parse_hugging_face_config(small_mixtral, "config.json");
  ASSERT_TRUE(model.has_value()) << model.error().message();
  EXPECT_EQ(model->name, "config.json");
  EXPECT_EQ(model->experts.count, 4);
  EXPECT_EQ(model->experts.per_token, 2);
  EXPECT_EQ(model->rotary_base, 1e6);
  // Block: query and output 8·8 each, key and value 8·4 each; router 8·4; four experts of 3·8·16; two norms of 8.
  const std::int64_t attention = 2 * 64 + 2 * 32;
  EXPECT_EQ(model->parameters(LayerKind::block), attention + 32 + 4 * 384 + 16);
  // Embedding and head 100·8 each, and the norm before the head.
  EXPECT_EQ(model->total_parameters(), 2 * (attention + 32 + 4 * 384 + 16) + 1600 + 8);
  EXPECT_EQ(model->total_parameters() - model->active_parameters(), 2 * 2 * 384);
  // A token: twice the products it goes through, and 2·2·8 for each of 64 / 2 keys.
  EXPECT_DOUBLE_EQ(model->layer_forward_flop(1, 1.0, 64).value(), 2.0 * (attention + 32 + 2 * 384) + 2.0 * 32 * 16);
}

TEST(HuggingFaceConfig, WhatIsNotUnderstoodIsNamed) {
  EXPECT_NE(config_error("\"model_type\": \"mixtral\"", "\"model_type\": \"mamba\"")
                .find("config.json: model_type \"mamba\" is not understood"),
            std::string::npos);
  EXPECT_NE(config_error("\"hidden_act\"", "\"hyper_connections\": 4, \"hidden_act\"")
                .find("config.json: not understood for model_type \"mixtral\": hyper_connections"),
            std::string::npos);
  EXPECT_NE(config_error("\"silu\"", "\"tanh\"").find("activation function \"tanh\""), std::string::npos);
  EXPECT_NE(config_error("\"hidden_size\": 8,", "").find("key 'hidden_size' is missing"), std::string::npos);
  EXPECT_NE(config_error("\"hidden_size\": 8", "\"hidden_size\": 8.5")
                .find("key 'hidden_size' is 8.5 but must be a whole number"),
            std::string::npos);
  EXPECT_NE(config_error("\"num_experts_per_tok\": 2", "\"num_experts_per_tok\": 5").find("there are 4 experts"),
            std::string::npos);
  EXPECT_NE(config_error("{", "").find("config.json: is no JSON"), std::string::npos);
}

TEST(HuggingFaceConfig, BlocksWithWindowsAlternateAsLayerTypesSay) {
  std::string text = R"({"model_type": "gpt_oss", "vocab_size": 100, "hidden_size": 8, "num_hidden_layers": 4,
    "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 4, "intermediate_size": 16, "num_local_experts": 4,
    "num_experts_per_tok": 2, "max_position_embeddings": 64, "sliding_window": 16, "layer_types": [
    "sliding_attention", "full_attention", "sliding_attention", "full_attention"]})";
  const auto model = parse_hugging_face_config(text, "config.json");
  ASSERT_TRUE(model.has_value()) << model.error().message();
  EXPECT_EQ(model->window(0), 16);
  EXPECT_EQ(model->window(1), 0);
  EXPECT_EQ(model->window(2), 16);
  EXPECT_EQ(model->alike_until(1), 2);
  // Of 64 tokens each sees 16 - 16²/128 = 14 in the mean, not 32; heads are 4·4 wide, whatever the hidden state is.
  EXPECT_DOUBLE_EQ(model->attention_flop(0, 1.0, 64).value(), 2 * 14.0 * 32);
  EXPECT_DOUBLE_EQ(model->attention_flop(1, 1.0, 64).value(), 2 * 32.0 * 32);
  const auto refused = check_trainable(*model);
  ASSERT_FALSE(refused.has_value());
  EXPECT_NE(refused.error().message().find(
                "has experts with biases, heads of width 4 (hidden / attention_heads is 2), attention "
                "sinks, sliding windows of 16 tokens, which sailor-train does not compute"),
            std::string::npos)
      << refused.error().message();

  text.replace(text.rfind("full_attention"), 14, "sliding_attention");
  const auto irregular = parse_hugging_face_config(text, "config.json");
  ASSERT_FALSE(irregular.has_value());
  EXPECT_NE(irregular.error().message().find("regular intervals"), std::string::npos) << irregular.error().message();
}

TEST(Model, ExpertsAndLatentAttentionAreReadFromToml) {
  const auto text = read_text_file(models_folder / "tiny-gpt.toml");
  ASSERT_TRUE(text.has_value());
  const auto plain = parse_model(*text, "m.toml");
  const auto model = parse_model(*text + R"(
[experts]
count = 8
per_token = 2
feed_forward = 32
first_dense = 1
[latent_attention]
key_value_rank = 16
content_width = 8
position_width = 4
value_width = 8
)",
                                 "m.toml");
  ASSERT_TRUE(model.has_value()) << model.error().message();
  EXPECT_FALSE(model->has_experts(0));
  EXPECT_TRUE(model->has_experts(1));
  EXPECT_EQ(model->alike_until(1), 2);
  EXPECT_EQ(model->query_width(), model->attention_heads * 12);
  EXPECT_NE(model->layer_parameters(1), model->layer_parameters(2));
  EXPECT_TRUE(check_trainable(*plain).has_value());

  const auto refused = parse_model(*text + "[experts]\ncount = 8\nper_token = 9\nfeed_forward = 32\n", "m.toml");
  ASSERT_FALSE(refused.has_value());
  EXPECT_NE(refused.error().message().find("there are 8 experts"), std::string::npos) << refused.error().message();
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
}  // namespace sailor::model_test
