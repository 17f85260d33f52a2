// Hugging Face's tensors and names: against the formulas of PyTorch's modules written out here, and against
// transformers itself where it is installed.
#include "runtime/checkpoint/hugging_face.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <bit>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <nlohmann/json.hpp>
#include <numeric>

#include "core/files.hpp"
#include "core/process.hpp"
#include "runtime/checkpoint/safetensors.hpp"
#include "runtime_models.hpp"

namespace sailor::runtime::test::hugging_face_test {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

Model separate_norm_llama() {
  Model model = llama_model();
  model.name = "llama-separate";
  model.final_norm = FinalNorm::separate;
  model.tied_embedding = true;
  model.linear_bias = true;
  return model;
}

Model pre_norm_opt() {
  Model model = opt_model();
  model.name = "opt-pre";
  model.embedding_width = model.hidden;
  model.norm_placement = NormPlacement::pre;
  model.final_norm = FinalNorm::in_head;
  model.tied_embedding = false;
  return model;
}

std::vector<Model> exportable_models() {
  return {gpt_model(), opt_model(), pre_norm_opt(), neo_model(), llama_model(), separate_norm_llama(), experts_model()};
}

/// Of element `element` of the whole of ours.
float weight_of(int layer, const std::string& name, std::int64_t element) {
  const double seed = layer + static_cast<double>(name.size()) * 0.37 + static_cast<double>(name[0]);
  const bool norm_weight = name.find("norm") != std::string::npos && name.ends_with(".weight");
  const auto i = static_cast<double>(element);
  return static_cast<float>(0.15 * std::sin(seed + 0.73 * i + 0.0011 * i * i) + (norm_weight ? 1.0 : 0.0));
}

void write_all(const fs::path& path, std::string_view content) {
  std::ofstream(path, std::ios::binary | std::ios::trunc) << content;
}

std::string safetensors_bytes(const std::string& header, std::string_view data) {
  const std::uint64_t length = header.size();
  std::string text(sizeof(length), '\0');
  std::memcpy(text.data(), &length, sizeof(length));
  return text.append(header).append(data);
}

class HuggingFace : public ::testing::Test {
 protected:
  void SetUp() override {
    folder_ = fs::temp_directory_path() / fmt::format("sailor_hugging_face_{}", ::getpid());
    fs::remove_all(folder_);
    fs::create_directories(folder_);
  }
  void TearDown() override { fs::remove_all(folder_); }

  /// A checkpoint whose values are weight_of(), exported to folder_/<name>.
  fs::path exported(const Model& model) {
    const fs::path checkpoint = folder_ / (model.name + "-checkpoint");
    const auto values = [](const WholeTensor& tensor) -> Result<std::vector<float>> {
      std::vector<float> data(static_cast<std::size_t>(element_count(tensor.shape)));
      for (std::size_t i = 0; i < data.size(); ++i)
        data[i] = weight_of(tensor.layer, tensor.name, static_cast<std::int64_t>(i));
      return data;
    };
    EXPECT_TRUE(write_imported_checkpoint(checkpoint, model, "a formula", whole_tensors(model), values).has_value());
    auto reader = CheckpointReader::open(checkpoint);
    EXPECT_TRUE(reader.has_value());
    const auto done = export_hugging_face(*reader, model, folder_ / model.name);
    EXPECT_TRUE(done.has_value()) << done.error().message();
    return folder_ / model.name;
  }

  /// Why an import fails; "" when it does not.
  std::string problem(const fs::path& from, const Model& model) {
    const fs::path to = folder_ / "imported";
    const auto done = import_hugging_face(from, model, to);
    fs::remove_all(to);
    return done ? "" : done.error().message();
  }

  fs::path folder_;
};

std::vector<float> tensor(const fs::path& folder, const std::string& name, const Shape& shape) {
  const auto file = SafetensorsFile::open(folder / "model.safetensors");
  if (!file || !file->tensors().contains(name)) {
    ADD_FAILURE() << name << " is missing";
    return {};
  }
  EXPECT_EQ(file->tensors().at(name).shape, shape) << name;
  return file->read(file->tensors().at(name)).value();
}

TEST_F(HuggingFace, LinearMapsAreWherePyTorchHasThem) {
  // LLaMA: hidden 32, 8 heads of 4, 4 key-value heads: keys are rows 32 to 47 of ours, values 48 to 63.
  const fs::path llama = exported(llama_model());
  const auto keys = tensor(llama, "model.layers.1.self_attn.k_proj.weight", {16, 32});
  const auto values = tensor(llama, "model.layers.1.self_attn.v_proj.weight", {16, 32});
  EXPECT_EQ(keys.at(3 * 32 + 5), weight_of(2, "attention.input.weight", (32 + 3) * 32 + 5));
  EXPECT_EQ(values.at(3 * 32 + 5), weight_of(2, "attention.input.weight", (48 + 3) * 32 + 5));
  // PyTorch's (out, in) of what we store (in, out).
  const auto output = tensor(llama, "model.layers.0.self_attn.o_proj.weight", {32, 32});
  EXPECT_EQ(output.at(7 * 32 + 9), weight_of(1, "attention.output.weight", 9 * 32 + 7));
  const auto up = tensor(llama, "model.layers.0.mlp.up_proj.weight", {24, 32});
  EXPECT_EQ(up.at(2 * 32 + 1), weight_of(1, "feed_forward.input.weight", (24 + 2) * 32 + 1));
  const auto down = tensor(llama, "model.layers.0.mlp.down_proj.weight", {32, 24});
  EXPECT_EQ(down.at(31 * 24 + 4), weight_of(1, "feed_forward.output.weight", 4 * 32 + 31));
  EXPECT_EQ(tensor(llama, "model.norm.weight", {32}).at(6), weight_of(3, "final_norm.weight", 6));
  EXPECT_EQ(tensor(llama, "lm_head.weight", {23, 32}).at(40), weight_of(3, "output.weight", 40));

  // OPT-350M in small: positions from row 2 on, projections between 8 and 16.
  const fs::path opt = exported(opt_model());
  const auto positions = tensor(opt, "model.decoder.embed_positions.weight", {14, 16});
  EXPECT_EQ(positions.at(2 * 16 + 3), weight_of(0, "position_embedding.weight", 3));
  EXPECT_EQ(tensor(opt, "model.decoder.project_in.weight", {16, 8}).at(9), weight_of(0, "projection.weight", 9));
  EXPECT_EQ(tensor(opt, "model.decoder.project_out.weight", {8, 16}).at(9), weight_of(3, "projection.weight", 9));
  EXPECT_EQ(tensor(opt, "model.decoder.layers.1.fc2.weight", {16, 32}).at(5 * 32 + 1),
            weight_of(2, "feed_forward.output.weight", 1 * 16 + 5));
  EXPECT_EQ(tensor(opt, "model.decoder.layers.1.self_attn.v_proj.bias", {16}).at(2),
            weight_of(2, "attention.input.bias", 32 + 2));

  // GPT-2's Conv1D is (in, out).
  const fs::path gpt = exported(gpt_model());
  EXPECT_EQ(tensor(gpt, "transformer.h.0.attn.c_attn.weight", {16, 48}).at(3 * 48 + 20),
            weight_of(1, "attention.input.weight", 20 * 16 + 3));
  EXPECT_EQ(tensor(gpt, "transformer.h.0.mlp.c_proj.weight", {32, 16}).at(17),
            weight_of(1, "feed_forward.output.weight", 17));
  const fs::path neo = exported(neo_model());
  EXPECT_EQ(tensor(neo, "transformer.h.1.attn.attention.q_proj.weight", {16, 16}).at(18),
            weight_of(2, "attention.input.weight", 18));
}

TEST_F(HuggingFace, ExpertsAreWhereMixtralHasThem) {
  // Four experts of 12 inner values: gate and up of expert 2 are rows 48 to 59 and 60 to 71 of ours.
  const fs::path experts = exported(experts_model());
  const std::string moe = "model.layers.1.block_sparse_moe.";
  EXPECT_EQ(tensor(experts, moe + "gate.weight", {4, 32}).at(3 * 32 + 2), weight_of(2, "router.weight", 3 * 32 + 2));
  EXPECT_EQ(tensor(experts, moe + "experts.2.w1.weight", {12, 32}).at(5 * 32 + 1),
            weight_of(2, "experts.input.weight", (48 + 5) * 32 + 1));
  EXPECT_EQ(tensor(experts, moe + "experts.2.w3.weight", {12, 32}).at(5 * 32 + 1),
            weight_of(2, "experts.input.weight", (60 + 5) * 32 + 1));
  // (hidden, inner), of what we store (inner, hidden).
  EXPECT_EQ(tensor(experts, moe + "experts.2.w2.weight", {32, 12}).at(7 * 12 + 5),
            weight_of(2, "experts.output.weight", (24 + 5) * 32 + 7));
}

TEST_F(HuggingFace, ExportAndImportGiveTheSameBits) {
  for (const Model& model : exportable_models()) {
    const fs::path folder = exported(model);
    const fs::path checkpoint = folder_ / (model.name + "-again") / "iteration-00000000";
    const auto imported = import_hugging_face(folder, model, checkpoint);
    ASSERT_TRUE(imported.has_value()) << imported.error().message();
    auto reader = CheckpointReader::open(checkpoint).value();
    EXPECT_TRUE(reader.verify().has_value());
    EXPECT_EQ(reader.manifest().iteration, 0);
    EXPECT_FALSE(reader.manifest().training.has_value());
    std::int64_t elements = 0;
    for (const StoredTensor& stored : reader.manifest().tensors) {
      std::vector<float> values(static_cast<std::size_t>(stored.elements()));
      ASSERT_TRUE(reader.read(stored, StoredArray::value, {0, stored.elements()}, values.data()));
      for (std::int64_t i = 0; i < stored.elements(); ++i)
        ASSERT_EQ(values[static_cast<std::size_t>(i)], weight_of(stored.layer, stored.name, i))
            << model.name << ", layer " << stored.layer << ", " << stored.name << ", element " << i;
      elements += stored.elements();
      ASSERT_TRUE(reader.read(stored, StoredArray::second_moment, {0, stored.elements()}, values.data()));
      EXPECT_EQ(std::accumulate(values.begin(), values.end(), 0.0f), 0.0f);
    }
    EXPECT_EQ(elements, model.total_parameters());
  }
}

TEST_F(HuggingFace, ModelsThatTransformersLacksSayWhy) {
  const auto message = [](const Model& model) { return foreign_tensors(model).error().message(); };
  EXPECT_EQ(message(untied_model()),
            "model 'untied' matches no architecture that transformers has: for OPT, the nearest, it would need "
            "activation = \"relu\"; "
            "OPT, GPT-Neo, GPT-2, LLaMA and Mixtral can be imported and exported");
  EXPECT_NE(message(llama_sailor_model()).find("for LLaMA, the nearest, it would need one final norm"),
            std::string::npos);
  EXPECT_FALSE(foreign_tensors(mixed_model()).has_value());
}

TEST_F(HuggingFace, ExportRefusesAFolderWithAModel) {
  const Model model = gpt_model();
  const fs::path folder = exported(model);
  auto reader = CheckpointReader::open(folder_ / "gpt-checkpoint").value();
  const auto again = export_hugging_face(reader, model, folder);
  ASSERT_FALSE(again.has_value());
  EXPECT_EQ(again.error().message(),
            fmt::format("'{}' is there already; name a folder without a model", (folder / "config.json").string()));
}

TEST_F(HuggingFace, SharedExpertsHaveNoLayoutYet) {
  Model model = shared_expert_model();
  model.experts.first_dense = 0;
  const auto config = config_text(model);
  ASSERT_FALSE(config.has_value());
  EXPECT_NE(config.error().message().find("for Mixtral, the nearest, it would need no shared expert"),
            std::string::npos)
      << config.error().message();
}

TEST_F(HuggingFace, ConfigsOfOtherModelsAreRefused) {
  const auto message = [](const Model& model, const std::function<void(Json&)>& change) -> std::string {
    Json config = Json::parse(config_text(model).value());
    change(config);
    const auto checked = check_config(config.dump(), "c", model);
    return checked ? "good" : checked.error().what;
  };
  for (const Model& model : exportable_models()) EXPECT_EQ(message(model, [](Json&) {}), "good");
  const Model llama = llama_model();
  EXPECT_EQ(message(llama, [](Json& c) { c["num_key_value_heads"] = 8; }),
            "'c' does not describe model 'llama': num_key_value_heads is 8 instead of 4");
  EXPECT_EQ(message(llama, [](Json& c) { c.erase("rope_theta"); }),
            "'c' does not describe model 'llama': rope_theta is 10000.0 (the default) instead of 100.0");
  EXPECT_EQ(message(llama,
                    [](Json& c) {
                      c.erase("rope_theta");
                      c["rope_parameters"] = {{"rope_theta", 100.0}, {"rope_type", "default"}};
                    }),
            "good");
  EXPECT_NE(message(llama,
                    [](Json& c) {
                      c["rope_scaling"] = {{"rope_type", "llama3"}};
                    })
                .find("scales its rotary"),
            std::string::npos);
  EXPECT_NE(message(llama, [](Json& c) { c["model_type"] = "mistral"; }).find("model_type is \"mistral\""),
            std::string::npos);
  const Model experts = experts_model();
  EXPECT_EQ(message(experts, [](Json& c) { c["num_experts_per_tok"] = 1; }),
            "'c' does not describe model 'experts': num_experts_per_tok is 1 instead of 2");
  EXPECT_EQ(message(experts, [](Json& c) { c["sliding_window"] = nullptr; }), "good");
  EXPECT_NE(message(experts, [](Json& c) { c["sliding_window"] = 4096; }).find("has a sliding window"),
            std::string::npos);
  const Model neo = neo_model();
  EXPECT_NE(message(neo, [](Json& c) { c["window_size"] = 256; }).find("window_size is 256 instead of 3"),
            std::string::npos);
  EXPECT_NE(message(neo, [](Json& c) { c["attention_types"][0][1] = 3; }).find("not global and local in turn"),
            std::string::npos);
  EXPECT_EQ(message(neo,
                    [](Json& c) {
                      c.erase("attention_types");
                      c["attention_layers"] = {"global", "local"};
                    }),
            "good");
  EXPECT_EQ(message(neo,
                    [](Json& c) {
                      c["attention_types"] = {{{"global"}, 9'000'000'000'000'000u}};
                    })
                .find("good"),
            std::string::npos);
  EXPECT_FALSE(check_config("[", "c", neo).has_value());
}

TEST_F(HuggingFace, ImportNeedsEveryTensorAndNoOther) {
  const Model model = neo_model();
  const fs::path from = exported(model);
  const auto original = SafetensorsFile::open(from / "model.safetensors");
  ASSERT_TRUE(original.has_value());
  /// The exported file with changes.
  const auto rewritten = [&](const std::function<void(std::vector<NamedShape>&)>& change) {
    std::vector<NamedShape> tensors;
    for (const auto& [name, entry] : original->tensors()) tensors.push_back({name, entry.shape});
    change(tensors);
    const fs::path to = folder_ / "changed";
    fs::remove_all(to);
    fs::create_directories(to);
    fs::copy_file(from / "config.json", to / "config.json");
    EXPECT_TRUE(write_safetensors(to / "model.safetensors", tensors, [&](std::size_t i) -> Result<std::vector<float>> {
      std::string name = tensors[i].name;
      if (!original->tensors().contains(name)) name = "transformer." + name;
      if (original->tensors().contains(name)) return original->read(original->tensors().at(name));
      if (tensors[i].name == "lm_head.weight") return original->read(original->tensors().at("transformer.wte.weight"));
      return std::vector<float>(static_cast<std::size_t>(element_count(tensors[i].shape)), 1.0f);
    }));
    return problem(to, model);
  };
  EXPECT_EQ(rewritten([](auto&) {}), "");
  EXPECT_EQ(rewritten([](auto& tensors) {
              for (NamedShape& tensor : tensors) tensor.name = tensor.name.substr(12);  // as GPTNeoModel has them
            }),
            "");
  EXPECT_EQ(rewritten([](auto& tensors) {
              tensors.push_back({"lm_head.weight", {23, 16}});  // the embedding once more
              tensors.push_back({"transformer.h.0.attn.attention.masked_bias", {}});
            }),
            "");
  EXPECT_NE(rewritten([](auto& tensors) { tensors.pop_back(); }).find("has no tensor 'transformer.wte.weight'"),
            std::string::npos);
  EXPECT_NE(rewritten([](auto& tensors) {
              tensors.push_back({"transformer.h.2.ln_1.weight", {16}});
            }).find("has tensor 'transformer.h.2.ln_1.weight', which model 'neo' does not"),
            std::string::npos);
  EXPECT_NE(rewritten([](auto& tensors) { tensors[0].shape = {8, 32}; }).find("has shape (8, 32)"), std::string::npos);
}

TEST_F(HuggingFace, ModelsInSeveralFilesAreRead) {
  const Model model = gpt_model();
  const fs::path folder = exported(model);
  fs::rename(folder / "model.safetensors", folder / "model-00001-of-00001.safetensors");
  EXPECT_NE(problem(folder, model).find("has neither model.safetensors nor"), std::string::npos);
  const fs::path index = folder / "model.safetensors.index.json";
  write_all(index, R"({"weight_map": {"transformer.wte.weight": "model-00001-of-00001.safetensors"}})");
  EXPECT_EQ(problem(folder, model), "");
  write_all(index, R"({"weight_map": {"transformer.wte.weight": "../gpt/model-00001-of-00001.safetensors"}})");
  EXPECT_NE(problem(folder, model).find("which is no .safetensors file of the folder"), std::string::npos);
}

// ---- The format

TEST_F(HuggingFace, HalfPrecisionIsWidened) {
  // BF16 is the upper half of a float. F16 1.5 = 0 01111 1000000000; -65504 is its largest, 2^-24 its smallest value.
  const std::array<std::uint16_t, 8> halves{std::bit_cast<std::uint32_t>(1.5f) >> 16,
                                            std::bit_cast<std::uint32_t>(-3.0e38f) >> 16,
                                            0x3e00,
                                            0xfbff,
                                            0x0001,
                                            0x8000,
                                            0x7c00,
                                            0x3555};
  std::string data(sizeof(halves), '\0');
  std::memcpy(data.data(), halves.data(), sizeof(halves));
  write_all(folder_ / "t", safetensors_bytes(R"({"b":{"dtype":"BF16","shape":[2],"data_offsets":[0,4]},)"
                                             R"("h":{"dtype":"F16","shape":[2,3],"data_offsets":[4,16]}})",
                                             data));
  const auto file = SafetensorsFile::open(folder_ / "t");
  ASSERT_TRUE(file.has_value()) << file.error().message();
  const auto brain = file->read(file->tensors().at("b")).value();
  EXPECT_EQ(brain[0], 1.5f);
  EXPECT_NEAR(brain[1], -3.0e38f, 3.0e36f);
  const auto half = file->read(file->tensors().at("h")).value();
  EXPECT_EQ(half, (std::vector<float>{1.5f, -65504.0f, 0x1p-24f, -0.0f, INFINITY, 0.333251953125f}));
  EXPECT_TRUE(std::signbit(half[3]));
}

TEST_F(HuggingFace, HostileFilesAreRefused) {
  const auto message = [&](const std::string& header, std::int64_t bytes) -> std::string {
    const auto parsed = parse_safetensors_header(header, bytes, "f");
    return parsed ? "good" : parsed.error().what;
  };
  EXPECT_EQ(message("{}", 0), "good");
  EXPECT_EQ(message(R"({"__metadata__":{"a":"b"},"t":{"dtype":"F32","shape":[],"data_offsets":[0,4]}})", 4), "good");
  const auto entry = [&](const std::string& shape, const std::string& offsets, const std::string& type = "F32") {
    return message(fmt::format(R"({{"t":{{"dtype":"{}","shape":{},"data_offsets":{}}}}})", type, shape, offsets), 16);
  };
  EXPECT_EQ(entry("[2,2]", "[0,16]"), "good");
  EXPECT_NE(entry("[2,2]", "[0,16]", "F31").find("unknown dtype 'F31'"), std::string::npos);
  for (const char* shape : {"[2,-2]", "[1e3]", "4", "[4294967296,4294967296,4294967296]", "[18446744073709551615]"})
    EXPECT_NE(entry(shape, "[0,16]").find("no proper shape"), std::string::npos) << shape;
  EXPECT_NE(entry("[3]", "[0,16]").find("has 3 elements of 4 bytes in 16 bytes"), std::string::npos);
  for (const char* offsets : {"[16,0]", "[0,20]", "[0,18446744073709551615]"})
    EXPECT_NE(entry("[4]", offsets).find("lies at bytes"), std::string::npos) << offsets;
  for (const char* offsets : {"[-1,15]", "[0]", "[0,16,17]", "[0.5,16]", "{}"})
    EXPECT_NE(entry("[4]", offsets).find("no proper data_offsets"), std::string::npos) << offsets;
  EXPECT_NE(entry("[2]", "[8,16]").find("leave a hole at byte 0"), std::string::npos);
  EXPECT_NE(entry("[2]", "[0,8]").find("end at byte 8 of 16"), std::string::npos);
  EXPECT_NE(message(R"({"a":{"dtype":"U8","shape":[3],"data_offsets":[0,3]},)"
                    R"("b":{"dtype":"U8","shape":[3],"data_offsets":[1,4]}})",
                    4)
                .find("overlap"),
            std::string::npos);
  EXPECT_NE(message(std::string(1'000'000, '['), 0).find("no JSON object"), std::string::npos);
  for (const std::string& file : {std::string(), std::string("\1\0\0", 3), std::string(8, '\xff') + "{}",
                                  safetensors_bytes("{}", "").substr(0, 9)}) {
    write_all(folder_ / "t", file);
    const auto opened = SafetensorsFile::open(folder_ / "t");
    ASSERT_FALSE(opened.has_value());
    EXPECT_NE(opened.error().what.find("is no safetensors file, or truncated"), std::string::npos);
  }
}

// ---- transformers

/// Our loss of TestBatch with the values of the checkpoint behind `exported`.
double own_loss(const Model& model) {
  const auto device = make_cpu_device();
  LayerSequence layers(model, {0, model.layers()}, {.device = device.get()});
  for (Parameter* parameter : layers.parameters().parameters())
    for (std::int64_t i = 0; i < parameter->elements(); ++i)
      parameter->value.floats()[i] = weight_of(parameter->layer, parameter->name, i);
  TestBatch batch(model);
  static_cast<void>(layers.forward(batch.micro_batch, {}));
  return batch.loss_sum / TestBatch::tokens;
}

TEST_F(HuggingFace, TransformersComputesTheSameLoss) {
  // SAILOR_TEST_PYTHON names an interpreter that has transformers, if the first in PATH has not.
  const char* named = std::getenv("SAILOR_TEST_PYTHON");
  const std::string python = named != nullptr ? named : "python3";
  const auto found = run_command({.arguments = {python, "-c", "import torch, transformers"}, .deadline = Seconds(120)});
  if (!found || !found->succeeded()) GTEST_SKIP() << python << " has no transformers";
  for (const Model& model : exportable_models()) {
    const fs::path folder = exported(model);
    const TestBatch batch(model);
    const auto outcome =
        run_command({.arguments = {python, "-c", R"(
import sys, torch, transformers
model = transformers.AutoModelForCausalLM.from_pretrained(sys.argv[1], attn_implementation="eager").eval()
tokens, targets = (torch.tensor(eval(a)).reshape(2, -1) for a in sys.argv[2:4])
logits = model(tokens).logits
print(torch.nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten()).item())
model.save_pretrained(sys.argv[4])
)",
                                   folder.string(), fmt::format("[{}]", fmt::join(batch.ids, ",")),
                                   fmt::format("[{}]", fmt::join(batch.targets, ",")), (folder / "saved").string()},
                     .deadline = Seconds(200)});
    ASSERT_TRUE(outcome && outcome->succeeded()) << model.name << ": " << outcome->errors;
    const double expected = own_loss(model);
    EXPECT_NEAR(std::stod(outcome->output), expected, 2e-5 * expected) << model.name;
    EXPECT_EQ(problem(folder / "saved", model), "") << "what transformers saved";
  }
}

}  // namespace
}  // namespace sailor::runtime::test::hugging_face_test
