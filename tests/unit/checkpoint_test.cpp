// Checkpoints: any plan reads the checkpoint of any other, and every fault of files or processes is noticed.
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdlib>
#include <fstream>
#include <limits>
#include <mutex>
#include <nlohmann/json.hpp>
#include <random>
#include <set>

#include "core/files.hpp"
#include "runtime/checkpoint/checkpoint.hpp"
#include "runtime/checkpoint/checksum.hpp"
#include "runtime/checkpoint/folder.hpp"
#include "runtime/checkpoint/owner.hpp"
#include "runtime_models.hpp"
#include "tests/fakes/thread_transport.hpp"

namespace sailor::runtime::test::checkpoint_test {
namespace {

namespace fs = std::filesystem;

/// What one rank of a plan holds: layers, its part of a tensor-parallel group, its part of the replicas' moments.
struct RankOf {
  LayerRange layers;
  Shard shard{};
  Shard replica{};  ///< ZeRO stage 1 over so many replicas
};
using PlanOf = std::vector<RankOf>;

/// A value that depends on every argument and is exact.
float value_of(int layer, const std::string& name, StoredArray array, std::int64_t element, std::int64_t salt) {
  std::uint64_t hash = 0xcbf29ce484222325u;
  for (const char c : name) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3u;
  for (const auto number : {std::int64_t{layer}, std::int64_t{static_cast<int>(array)}, element, salt})
    hash = (hash ^ static_cast<std::uint64_t>(number)) * 0x9e3779b97f4a7c15u, hash ^= hash >> 29;
  return static_cast<float>(hash & 0xffffff) * 0x1p-12f - 1000.0f;
}

/// The parameters and moments of one rank, without running anything.
class RankState {
 public:
  RankState(const Model& model, const RankOf& rank, DataType type = DataType::float32)
      : rank_(rank), device_(make_cpu_device()) {
    std::vector<Layer*> layers;
    LayerContext context{.device = device_.get(), .tensor_parallel = {rank.shard, nullptr}, .type = type};
    for (int index = rank.layers.first; index < rank.layers.last; ++index) {
      layers.push_back(layers_.emplace_back(make_layer(model, index, context)).get());
      if (index == 0) context.token_embedding = &token_embedding(*layers_.back());
    }
    storage_ = std::make_unique<ParameterStorage>(*device_, layers);
    std::vector<Range> owned;
    for (std::size_t i = 0; i < storage_->parameters().size(); ++i) {
      const Parameter& parameter = *storage_->parameters()[i];
      Range part = cut(parameter.elements(), rank.replica);
      part = {part.first + storage_->offset(i), part.last + storage_->offset(i)};
      owned.push_back(part);
      const bool copy = parameter.layer < rank.layers.first;  // of the embedding, in a tied head
      if (!copy && (parameter.is_divided() || rank.shard.index == 0)) written_.push_back(part);
    }
    optimizer_ = std::make_unique<AdamW>(*device_, *storage_, owned);
  }

  void fill(std::int64_t salt) {
    for (const Parameter* parameter : storage_->parameters())
      for (std::int64_t i = 0; i < parameter->elements(); ++i)
        store(value_of(parameter->layer, parameter->name, StoredArray::value, in_whole(*parameter, i), salt),
              parameter->value + i);
    visit([&](float& value, int layer, const std::string& name, StoredArray array, std::int64_t element) {
      value = value_of(layer, name, array, element, salt);
    });
  }
  /// How many values are not those of fill(salt).
  std::int64_t differences(std::int64_t salt, bool moments_are_zero = false) {
    std::int64_t count = 0;
    for (const Parameter* parameter : storage_->parameters())
      for (std::int64_t i = 0; i < parameter->elements(); ++i) {
        float expected = value_of(parameter->layer, parameter->name, StoredArray::value, in_whole(*parameter, i), salt);
        if (storage_->type() == DataType::bfloat16) expected = from_bfloat16(to_bfloat16(expected));
        if (load(parameter->value + i) != expected) ++count;
      }
    visit([&](const float& value, int layer, const std::string& name, StoredArray array, std::int64_t element) {
      const bool zero = moments_are_zero && array != StoredArray::value;
      if (value != (zero ? 0.0f : value_of(layer, name, array, element, salt))) ++count;
    });
    return count;
  }

  Device& device() { return *device_; }
  ParameterStorage& storage() { return *storage_; }
  AdamW& optimizer() { return *optimizer_; }
  std::vector<Range>& written() { return written_; }

 private:
  static std::int64_t in_whole(const Parameter& parameter, std::int64_t local) {
    for (const Piece& piece : parameter.pieces())
      if (local >= piece.local && local < piece.local + piece.count) return piece.whole + local - piece.local;
    return -1;
  }

  /// The optimizer's arrays.
  template <class Visit>
  void visit(const Visit& use) {
    for (const AdamW::Part& part : optimizer_->parts()) {
      const Parameter& parameter = *storage_->parameters()[part.parameter];
      for (std::int64_t i = 0; i < part.count; ++i) {
        const std::int64_t element = in_whole(parameter, part.first + i);
        if (optimizer_->master_values() != nullptr)
          use(optimizer_->master_values()[part.moment + i], parameter.layer, parameter.name, StoredArray::value,
              element);
        use(optimizer_->first_moments()[part.moment + i], parameter.layer, parameter.name, StoredArray::first_moment,
            element);
        use(optimizer_->second_moments()[part.moment + i], parameter.layer, parameter.name, StoredArray::second_moment,
            element);
      }
    }
  }

  RankOf rank_;
  std::unique_ptr<Device> device_;
  std::vector<std::unique_ptr<Layer>> layers_;
  std::unique_ptr<ParameterStorage> storage_;
  std::unique_ptr<AdamW> optimizer_;
  std::vector<Range> written_;
};

PlanOf one_rank(const Model& model) { return {{.layers = {0, model.layers()}}}; }

/// Stages [0, split) and [split, end), each with a tensor parallel degree, in so many replicas.
PlanOf grid(const Model& model, int split, int degree0, int degree1, int replicas) {
  PlanOf plan;
  for (int replica = 0; replica < replicas; ++replica) {
    for (int index = 0; index < degree0; ++index) plan.push_back({{0, split}, {index, degree0}, {replica, replicas}});
    for (int index = 0; index < degree1; ++index)
      plan.push_back({{split, model.layers()}, {index, degree1}, {replica, replicas}});
  }
  return plan;
}

CheckpointFacts facts_of(const Model& model) {
  return {.model = model,
          .training = {.seed = 0xffffffffffffffffu,
                       .sequence_length = 8,
                       .global_batch = 4,
                       .data = "corpus",
                       .settings = {{"learning_rate", "0.001"}},
                       .loss_scale = LossScale{.factor = 4096.0, .good = 17, .skipped = 3}},
          .plan = "schema_version = 1\n"};
}

/// Writes one checkpoint with as many ranks as the plan has. The outcome of rank 0; all ranks must have the same.
CheckpointOutcome write(const fs::path& folder, const Model& model, const PlanOf& plan, std::int64_t iteration,
                        int keep = 0, const std::function<void(int, RankState&)>& change = {},
                        DataType type = DataType::float32) {
  CheckpointOutcome outcome;
  std::mutex mutex;
  std::vector<std::string> texts;
  run_ranks(static_cast<int>(plan.size()), [&](const World& all) {
    Control& world = all.control;
    RankState state(model, plan[static_cast<std::size_t>(world.rank())], type);
    state.fill(iteration);
    if (change) change(world.rank(), state);
    CheckpointWriter writer(state.device(), folder, keep);
    EXPECT_FALSE(writer.progress(world).has_value());
    EXPECT_FALSE(writer.begin(world, iteration, state.storage(), state.optimizer(), state.written(), facts_of(model)));
    state.fill(-1);  // training goes on
    std::optional<CheckpointOutcome> mine;
    while (!mine) mine = writer.progress(world);
    EXPECT_FALSE(writer.is_under_way());
    EXPECT_FALSE(writer.finish(world).has_value());  // reported once
    const std::scoped_lock lock(mutex);
    texts.push_back(mine->written ? mine->folder.string() : mine->written.error().message());
    if (world.rank() == 0) outcome = *mine;
  });
  EXPECT_EQ(texts, std::vector<std::string>(plan.size(), texts.at(0)));
  return outcome;
}

Result<LoadedCheckpoint> load_into(RankState& state, const fs::path& checkpoint, const Model& model) {
  return load(checkpoint, model, state.device(), state.storage(), state.optimizer());
}

/// Loads as every rank of the plan would and counts wrong values.
std::int64_t differences(const fs::path& checkpoint, const Model& model, const PlanOf& plan, std::int64_t salt,
                         DataType type = DataType::float32) {
  std::int64_t count = 0;
  for (const RankOf& rank : plan) {
    RankState state(model, rank, type);
    state.fill(-2);
    const auto loaded = load_into(state, checkpoint, model);
    if (!loaded) {
      ADD_FAILURE() << loaded.error().message();
      return -1;
    }
    EXPECT_EQ(loaded->iteration, salt);
    count += state.differences(salt);
  }
  return count;
}

std::string read_all(const fs::path& path) {
  std::ifstream stream(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(stream), std::istreambuf_iterator<char>()};
}

void write_all(const fs::path& path, std::string_view content) {
  std::ofstream(path, std::ios::binary | std::ios::trunc) << content;
}

class Checkpoint : public ::testing::Test {
 protected:
  void SetUp() override {
    folder_ = fs::temp_directory_path() / fmt::format("sailor_checkpoint_{}", ::getpid());
    fs::remove_all(folder_);
  }
  void TearDown() override { fs::remove_all(folder_); }

  [[nodiscard]] std::vector<std::string> names() const {
    std::vector<std::string> found;
    for (const auto& entry : fs::directory_iterator(folder_)) found.push_back(entry.path().filename().string());
    std::sort(found.begin(), found.end());
    return found;
  }

  fs::path folder_;
};

// ---- Round trips

TEST(Checksum, IsXxh64) {  // values of the reference implementation
  EXPECT_EQ(checksum_text("", 0), "ef46db3751d8e999");
  EXPECT_EQ(checksum_text("abc", 3), "44bc2cf5ad770999");
  const std::string text = "Nobody inspects the spammish repetition";
  EXPECT_EQ(checksum_text(text.data(), text.size()), "fbcea83c8a378bf1");
}

TEST_F(Checkpoint, AnyPlanReadsWhatAnyOtherWroteBitByBit) {
  for (const Model& model : all_models_and_experts()) {
    const int key_value_heads = model.key_value_heads;
    const std::vector<PlanOf> plans{one_rank(model), grid(model, 2, 1, 1, 1), grid(model, 1, 2, 1, 1),
                                    grid(model, 3, key_value_heads, 2, 1), grid(model, 2, 1, 2, 3)};
    for (std::size_t writer = 0; writer < plans.size(); ++writer) {
      const fs::path folder = folder_ / model.name / std::to_string(writer);
      const CheckpointOutcome outcome = write(folder, model, plans[writer], 7);
      ASSERT_TRUE(outcome.written.has_value()) << outcome.written.error().message();
      // Values and two moments of 4 bytes for each parameter once, and the plan.
      EXPECT_EQ(outcome.bytes, Bytes(static_cast<double>(12 * model.total_parameters() + 19)));
      for (std::size_t reader = 0; reader < plans.size(); ++reader)
        EXPECT_EQ(differences(outcome.folder, model, plans[reader], 7), 0)
            << model.name << ", written by plan " << writer << ", read by plan " << reader;
    }
  }
}

TEST_F(Checkpoint, MasterValuesOfBfloat16AreReadUnderAnyPlanAndPrecision) {
  const auto types = {DataType::float32, DataType::bfloat16};
  for (const Model& model : {gpt_model(), opt_model(), llama_model()}) {
    const std::vector<PlanOf> plans{one_rank(model), grid(model, 1, 2, 1, 1), grid(model, 2, 1, 2, 3)};
    for (std::size_t writer = 0; writer < plans.size(); ++writer)
      for (const DataType written : types) {
        const fs::path folder = folder_ / model.name / fmt::format("{}-{}", writer, static_cast<int>(written));
        const CheckpointOutcome outcome = write(folder, model, plans[writer], 7, 0, {}, written);
        ASSERT_TRUE(outcome.written.has_value()) << outcome.written.error().message();
        EXPECT_EQ(outcome.bytes, Bytes(static_cast<double>(12 * model.total_parameters() + 19)));
        for (std::size_t reader = 0; reader < plans.size(); ++reader)
          for (const DataType read : types)
            EXPECT_EQ(differences(outcome.folder, model, plans[reader], 7, read), 0)
                << model.name << ", written by plan " << writer << ", read by plan " << reader;
      }
  }
}

TEST_F(Checkpoint, RemembersTheTraining) {
  const CheckpointOutcome outcome = write(folder_, gpt_model(), one_rank(gpt_model()), 7);
  EXPECT_EQ(outcome.folder, folder_ / "iteration-00000007");
  RankState state(gpt_model(), one_rank(gpt_model())[0]);
  const auto loaded = load_into(state, outcome.folder, gpt_model());
  ASSERT_TRUE(loaded && loaded->training);
  EXPECT_EQ(loaded->training->seed, 0xffffffffffffffffu);
  EXPECT_EQ(loaded->training->settings.at("learning_rate"), "0.001");
  ASSERT_TRUE(loaded->training->loss_scale);
  EXPECT_EQ(loaded->training->loss_scale->factor, 4096.0);
  EXPECT_EQ(loaded->training->loss_scale->good, 17);
  EXPECT_EQ(loaded->training->loss_scale->skipped, 3);
  EXPECT_EQ(read_all(outcome.folder / "plan.toml"), "schema_version = 1\n");
}

TEST_F(Checkpoint, ParametersLargerThanAPieceAreReadInPartsToo) {
  Model model = gpt_model();
  model.blocks = 1;
  model.vocabulary = 300'001;  // · 16 = 4,800,016 elements, more than the 4,194,304 of a piece
  const CheckpointOutcome outcome = write(folder_, model, one_rank(model), 3);
  ASSERT_TRUE(outcome.written.has_value());
  EXPECT_EQ(differences(outcome.folder, model, {{.layers = {0, 1}, .shard = {1, 4}, .replica = {1, 3}}}, 3), 0);
  EXPECT_EQ(differences(outcome.folder, model, {{.layers = {0, 1}, .shard = {3, 4}}}, 3), 0);
}

TEST_F(Checkpoint, BeginWaitsForTheOneBefore) {
  const Model model = gpt_model();
  run_ranks(2, [&](const World& all) {
    Control& world = all.control;
    RankState state(model, grid(model, 2, 1, 1, 1)[static_cast<std::size_t>(world.rank())]);
    CheckpointWriter writer(state.device(), folder_, 0);
    const auto begin = [&](std::int64_t iteration) {
      state.fill(iteration);
      return writer.begin(world, iteration, state.storage(), state.optimizer(), state.written(), facts_of(model));
    };
    EXPECT_FALSE(begin(1).has_value());
    const auto first = begin(2);
    ASSERT_TRUE(first.has_value());
    EXPECT_EQ(first->iteration, 1);
    EXPECT_TRUE(first->written.has_value());
    const auto second = writer.finish(world);
    ASSERT_TRUE(second.has_value());
    EXPECT_EQ(second->iteration, 2);
  });
  EXPECT_EQ(differences(folder_ / "iteration-00000001", model, one_rank(model), 1), 0);
  EXPECT_EQ(differences(folder_ / "iteration-00000002", model, one_rank(model), 2), 0);
}

// ---- What fails is said, and leaves the ones before

TEST_F(Checkpoint, RanksThatWriteTooLittleOrTooMuchFail) {
  const Model model = gpt_model();
  const PlanOf plan = grid(model, 2, 1, 1, 1);
  ASSERT_TRUE(write(folder_, model, plan, 1).written.has_value());
  const auto message = [&](const std::function<void(RankState&)>& change) {
    const auto outcome = write(folder_, model, plan, 2, 0, [&](int rank, RankState& state) {
      if (rank == 1) change(state);
    });
    return outcome.written ? "written" : outcome.written.error().message();
  };
  EXPECT_NE(message([](RankState& state) { state.written().pop_back(); }).find("parameters, but the model has"),
            std::string::npos);
  EXPECT_NE(message([](RankState& state) { --state.written().front().last; }).find("by its shape"), std::string::npos);
  EXPECT_NE(message([](RankState& state) { state.written().push_back(state.written().back()); }).find("there twice"),
            std::string::npos);
  EXPECT_EQ(names(), std::vector<std::string>{"iteration-00000001"});
}

TEST_F(Checkpoint, AFullDiskIsSaidAndTrainingGoesOn) {
  const Model model = gpt_model();
  const PlanOf plan = grid(model, 2, 1, 1, 1);
  ASSERT_TRUE(write(folder_, model, plan, 1).written.has_value());
  std::signal(SIGXFSZ, SIG_IGN);
  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &before), 0);
  rlimit small = before;
  small.rlim_cur = 5000;  // bytes: less than a shard's
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &small), 0);
  const CheckpointOutcome outcome = write(folder_, model, plan, 2);
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &before), 0);
  ASSERT_FALSE(outcome.written.has_value());
  EXPECT_EQ(outcome.written.error().what,
            fmt::format("the checkpoint of iteration 2 was not written: rank 0 (thread0): cannot write '{}': File too "
                        "large (and 1 rank more)",
                        (folder_ / "iteration-00000002/rank-00000.bin").string()));
  EXPECT_EQ(names(), std::vector<std::string>{"iteration-00000001"});
  EXPECT_EQ(differences(folder_ / "iteration-00000001", model, plan, 1), 0);
  EXPECT_TRUE(write(folder_, model, plan, 3).written.has_value());
}

TEST_F(Checkpoint, WhatIsNotFiniteIsNotSaved) {
  const Model model = gpt_model();
  const PlanOf plan = grid(model, 2, 1, 1, 1);
  ASSERT_TRUE(write(folder_, model, plan, 1).written.has_value());
  for (const float bad : {std::numeric_limits<float>::quiet_NaN(), -std::numeric_limits<float>::infinity()})
    for (const bool moment : {false, true}) {
      const CheckpointOutcome outcome = write(folder_, model, plan, 2, 1, [&](int rank, RankState& state) {
        if (rank == 1 && moment) state.optimizer().second_moments()[3] = bad;
        if (rank == 1 && !moment) state.storage().parameters().front()->value.floats()[3] = bad;
      });
      ASSERT_FALSE(outcome.written.has_value());
      EXPECT_TRUE(outcome.not_finite);
      EXPECT_FALSE(outcome.taken_over);
      EXPECT_NE(outcome.written.error().what.find(moment ? "rank 1 (thread1): the second_moment of layer "
                                                         : "rank 1 (thread1): the value of layer "),
                std::string::npos)
          << outcome.written.error().what;
      EXPECT_NE(outcome.written.error().what.find("has a value that is not finite"), std::string::npos);
      EXPECT_EQ(names(), std::vector<std::string>{"iteration-00000001"});
    }
  EXPECT_FALSE(write(folder_, model, plan, 3).not_finite);
}

TEST_F(Checkpoint, AFolderThatCannotBeMadeIsSaid) {
  write_all(folder_, "a file");
  const CheckpointOutcome outcome = write(folder_, gpt_model(), one_rank(gpt_model()), 1);
  ASSERT_FALSE(outcome.written.has_value());
  EXPECT_NE(outcome.written.error().what.find(fmt::format("'{}'", folder_.string())), std::string::npos)
      << outcome.written.error().what;
}

TEST_F(Checkpoint, FlippedBitsAndTruncationAreNoticedInEveryFile) {
  const Model model = neo_model();
  ASSERT_TRUE(write(folder_, model, grid(model, 2, 1, 2, 1), 1).written.has_value());
  const fs::path newest = write(folder_, model, grid(model, 2, 2, 1, 1), 2).folder;
  const auto problem = [&]() -> std::string {
    auto reader = CheckpointReader::open(newest);
    if (!reader) return reader.error().message();
    const auto verified = reader->verify();
    return verified ? "" : verified.error().message();
  };
  const auto load_problem = [&]() -> std::string {
    RankState state(model, one_rank(model)[0]);
    const auto loaded = load_into(state, newest, model);
    return loaded ? "" : loaded.error().message();
  };
  ASSERT_EQ(problem(), "");
  std::mt19937 random(20260101);  // NOLINT: the same bits in every run
  int files = 0;
  for (const auto& entry : fs::directory_iterator(newest)) {
    const std::string content = read_all(entry.path());
    const bool is_plan = entry.path().filename() == "plan.toml";  // which load() does not read
    ++files;
    std::vector<std::size_t> places{0, content.size() - 1, content.size() / 2};
    for (int i = 0; i < 60; ++i) places.push_back(random() % content.size());
    for (const std::size_t place : places) {
      std::string damaged = content;
      damaged[place] = static_cast<char>(damaged[place] ^ (1 << random() % 8));
      write_all(entry.path(), damaged);
      const std::string said = problem();
      ASSERT_NE(said, "") << entry.path() << ", byte " << place;
      EXPECT_NE(said.find(entry.path().string()), std::string::npos) << said;
      EXPECT_NE(said.find("use '" + (folder_ / "iteration-00000001").string() + "', the newest one before it"),
                std::string::npos)
          << said;
      if (!is_plan) {
        ASSERT_NE(load_problem(), "") << entry.path() << ", byte " << place;
      }
    }
    for (const std::size_t size : {std::size_t{0}, content.size() / 2, content.size() - 1}) {
      write_all(entry.path(), content.substr(0, size));
      ASSERT_NE(problem(), "") << entry.path() << " with " << size << " bytes";
      ASSERT_NE(load_problem(), "") << entry.path() << " with " << size << " bytes";
      const auto latest = find_latest(folder_);
      ASSERT_TRUE(latest && *latest);
      EXPECT_EQ((*latest)->iteration, 1);
    }
    write_all(entry.path(), content + "x");
    ASSERT_NE(problem(), "");
    fs::remove(entry.path());
    ASSERT_NE(problem(), "");
    write_all(entry.path(), content);
    ASSERT_EQ(problem(), "");
  }
  EXPECT_EQ(files, 5);  // three ranks, the plan, the manifest
}

TEST_F(Checkpoint, ExpertsThatTokensGoThroughInOtherNumbersAreAnotherModel) {
  const fs::path checkpoint = write(folder_, experts_model(), one_rank(experts_model()), 1).folder;
  Model other = experts_model();  // with the same parameters
  other.experts.per_token = 1;
  RankState state(other, one_rank(other)[0]);
  const auto loaded = load_into(state, checkpoint, other);
  ASSERT_FALSE(loaded.has_value());
  EXPECT_NE(loaded.error().message().find("experts.per_token is 2 in the checkpoint and 1 in the model"),
            std::string::npos)
      << loaded.error().message();
}

TEST_F(Checkpoint, AnotherModelIsRefusedWithTheDifference) {
  const fs::path checkpoint = write(folder_, gpt_model(), one_rank(gpt_model()), 1).folder;
  RankState state(neo_model(), one_rank(neo_model())[0]);
  const auto loaded = load_into(state, checkpoint, neo_model());
  ASSERT_FALSE(loaded.has_value());
  EXPECT_EQ(loaded.error().message(),
            fmt::format("checkpoint '{}' is of model 'gpt', which is not 'neo': attention_input_bias is true in the "
                        "checkpoint and false in the model, local_attention_window is 0 in the checkpoint and 3 in the "
                        "model, scale_attention is true in the checkpoint and false in the model; use model 'gpt', or "
                        "a checkpoint of 'neo'",
                        checkpoint.string()));
  Model renamed = gpt_model();
  renamed.name = "the same under another name";
  EXPECT_TRUE(load_into(*std::make_unique<RankState>(renamed, one_rank(renamed)[0]), checkpoint, renamed).has_value());
}

TEST_F(Checkpoint, WhatIsNoCheckpointSaysSo) {
  RankState state(gpt_model(), one_rank(gpt_model())[0]);
  const auto message = [&](const fs::path& path) { return load_into(state, path, gpt_model()).error().message(); };
  EXPECT_EQ(message(folder_ / "none"), fmt::format("there is no checkpoint '{}'", (folder_ / "none").string()));
  fs::create_directories(folder_ / "iteration-00000005");
  EXPECT_NE(message(folder_ / "iteration-00000005").find("has no manifest.json; its writing was interrupted"),
            std::string::npos);
  const auto latest = find_latest(folder_);
  ASSERT_TRUE(latest.has_value());
  EXPECT_FALSE(latest->has_value());
  ASSERT_TRUE(find_latest(folder_ / "none").has_value());
}

// ---- Retention

/// As if nothing in the folder had changed for so long.
void age(const fs::path& folder, std::chrono::hours time) {
  const auto then = fs::file_time_type::clock::now() - time;
  for (const auto& entry : fs::directory_iterator(folder)) fs::last_write_time(entry.path(), then);
  fs::last_write_time(folder, then);
}

TEST_F(Checkpoint, KeepsTheNewestAndTouchesNothingElse) {
  const Model model = gpt_model();
  const PlanOf plan = grid(model, 2, 1, 1, 1);
  // Interrupted long ago, and just now: perhaps by a training that goes on.
  for (const auto& [name, hours] : {std::pair("iteration-00000098", 25), std::pair("iteration-00000099", 23),
                                    std::pair(".removed-0123456789abcdef", 25)}) {
    fs::create_directories(folder_ / name);
    write_all(folder_ / name / "rank-00000.bin", "half");
    age(folder_ / name, std::chrono::hours(hours));
  }
  fs::create_directories(folder_ / "iteration-best");
  write_all(folder_ / "notes.txt", "mine");
  for (const std::int64_t iteration : {10, 20, 30})
    ASSERT_TRUE(write(folder_, model, plan, iteration, 2).written.has_value());
  EXPECT_EQ(names(), (std::vector<std::string>{"iteration-00000020", "iteration-00000030", "iteration-00000099",
                                               "iteration-best", "notes.txt"}));
  // A damaged one counts for nothing; the newest valid one stays.
  write_all(folder_ / "iteration-00000030/rank-00001.bin", "");
  ASSERT_TRUE(write(folder_, model, plan, 40, 1).written.has_value());
  EXPECT_EQ(names(), (std::vector<std::string>{"iteration-00000030", "iteration-00000040", "iteration-00000099",
                                               "iteration-best", "notes.txt"}));
}

TEST_F(Checkpoint, NothingGoesWhenTheNewestIsNoLongerComplete) {
  const Model model = gpt_model();
  const PlanOf plan = one_rank(model);
  const auto always = [] { return Result<void>(); };
  for (const std::int64_t iteration : {10, 20, 30})
    ASSERT_TRUE(write(folder_, model, plan, iteration).written.has_value());
  const fs::path newest = folder_ / "iteration-00000030";
  fs::remove(newest / "rank-00000.bin");
  const auto removed = remove_old_checkpoints(folder_, newest, 1, always);
  ASSERT_FALSE(removed);
  EXPECT_NE(removed.error().what.find("is no longer complete: no older one was removed"), std::string::npos);
  EXPECT_EQ(names().size(), 3U);
  // What is newer than the one that was just written is not its business.
  EXPECT_TRUE(remove_old_checkpoints(folder_, folder_ / "iteration-00000010", 1, always));
  EXPECT_EQ(names().size(), 3U);
  // Nor may it remove what another training has now.
  const auto lost = remove_old_checkpoints(folder_, folder_ / "iteration-00000020", 1,
                                           [] { return Result<void>(fail(ErrorCode::unavailable, "lost")); });
  EXPECT_FALSE(lost);
  EXPECT_EQ(names().size(), 3U);
}

TEST_F(Checkpoint, NewestIsWhatWasWrittenLast) {
  const Model model = gpt_model();
  const PlanOf plan = one_rank(model);
  for (const std::int64_t iteration : {100, 200, 150, 100})  // gone back twice
    ASSERT_TRUE(write(folder_, model, plan, iteration, 2).written.has_value());
  EXPECT_EQ(names(), (std::vector<std::string>{"iteration-00000100", "iteration-00000150"}));
  const auto latest = find_latest(folder_);
  ASSERT_TRUE(latest && *latest);
  EXPECT_EQ((*latest)->iteration, 100);
  ASSERT_TRUE(write(folder_, model, plan, 100, 2).written.has_value());  // the old one stays until the new one is there
  EXPECT_EQ(names(), (std::vector<std::string>{"iteration-00000100", "iteration-00000100.2"}));
  EXPECT_EQ(resolve_checkpoint(folder_).value(), folder_ / "iteration-00000100.2");
}

// ---- Killed writers

std::unique_ptr<FolderOwner> owner_of(const fs::path& folder, const OwnerFacts& facts) {
  FolderClaim claim(folder, facts);
  while (!claim.look()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  auto owner = claim.result();
  return owner ? *std::move(owner) : nullptr;
}

/// In the child: two ranks write checkpoint after checkpoint until they are killed; "<iteration>\n" for each.
[[noreturn]] void write_forever(const fs::path& folder, const Model& model, std::int64_t first, int report) {
  const PlanOf plan = grid(model, 2, 1, 1, 1);
  run_ranks(2, [&](const World& all) {
    Control& world = all.control;
    RankState state(model, plan[static_cast<std::size_t>(world.rank())]);
    const auto owner = world.rank() == 0 ? owner_of(folder, facts_of_this_process("here")) : nullptr;
    if (world.rank() == 0 && owner == nullptr) ::_exit(1);  // the one before was killed
    CheckpointWriter writer(state.device(), folder, 2, owner.get());
    for (std::int64_t iteration = first;; ++iteration) {
      state.fill(iteration);
      const auto outcome =
          writer.begin(world, iteration, state.storage(), state.optimizer(), state.written(), facts_of(model));
      if (world.rank() != 0 || !outcome) continue;
      const std::string line = outcome->written ? fmt::format("{}\n", outcome->iteration) : "failed\n";
      if (::write(report, line.data(), line.size()) < 0) ::_exit(1);
    }
  });
  ::_exit(1);
}

TEST_F(Checkpoint, KilledWritersLeaveTheNewestValid) {
  const Model model = opt_model();
  const PlanOf reader = grid(model, 1, 2, 1, 2);
  std::mt19937 random(20260101);  // NOLINT: the same pauses in every run
  std::int64_t acknowledged = 0;
  std::int64_t newest = 0;
  int interrupted = 0;
  std::chrono::microseconds longest{0};  // pause; how long the first checkpoint took, and as long again
  constexpr int kills = 50;
  for (int kill = 0; kill <= kills; ++kill) {
    int ends[2];
    ASSERT_EQ(::pipe(ends), 0);
    const pid_t child = ::fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      ::close(ends[0]);
      write_forever(folder_, model, newest + 1, ends[1]);
    }
    ::close(ends[1]);
    std::string report;
    char c = 0;
    const auto read_line = [&] {
      do {
        if (::read(ends[0], &c, 1) != 1) return;
        report += c;
      } while (c != '\n');
    };
    if (kill == 0) {
      const auto start = std::chrono::steady_clock::now();
      read_line();
      longest = 2 * std::chrono::duration_cast<std::chrono::microseconds>(std::chrono::steady_clock::now() - start);
    } else if (kill == kills) {
      for (int checkpoint = 0; checkpoint < 2; ++checkpoint) read_line();
    } else {
      ::usleep(static_cast<useconds_t>(random() % static_cast<unsigned long>(longest.count())));
    }
    ::kill(child, SIGKILL);
    int status = 0;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    ASSERT_TRUE(WIFSIGNALED(status)) << "the writer ended by itself";
    while (::read(ends[0], &c, 1) == 1) report += c;
    ::close(ends[0]);
    ASSERT_EQ(report.find("failed"), std::string::npos);
    if (!report.empty()) acknowledged = std::stoll(report.substr(report.rfind('\n', report.size() - 2) + 1));

    const auto entries = list_checkpoints(folder_);
    ASSERT_TRUE(entries.has_value());
    for (const CheckpointEntry& entry : *entries) {
      if (!entry.is_valid()) {
        ++interrupted;
        continue;
      }
      ASSERT_EQ(differences(entry.path, model, reader, entry.iteration), 0) << entry.path;
    }
    const bool found = !entries->empty() && entries->front().is_valid();
    ASSERT_TRUE(found || acknowledged == 0);
    if (found) newest = entries->front().iteration;
    ASSERT_GE(newest, acknowledged);
  }
  EXPECT_GT(acknowledged, 0);
  EXPECT_GT(interrupted, 0) << "no writer was killed in the middle";
  // The last writer, which had the time, has removed what those before it left: the two that it keeps are there, one
  // that it was killed in, and perhaps one whose writer was killed before the folder had its name.
  std::size_t folders = 0;
  for (const std::string& name : names()) folders += is_checkpoint_folder_name(name) ? 1 : 0;
  EXPECT_LE(folders, 4U);
}

// ---- Two trainings in one folder

/// In the child: a training that writes checkpoint after checkpoint, and claims the folder again whenever another
/// training has taken it over: as if its job were requeued, and the one before had not ended yet. Without `owned`
/// neither knows of the other.
[[noreturn]] void contend(const fs::path& folder, const Model& model, int keep, bool owned, int which) {
  const PlanOf plan = grid(model, 2, 1, 1, 1);
  std::mt19937 random(static_cast<unsigned>(which));  // NOLINT: the same pauses in every run
  for (std::int64_t iteration = which;;) {
    run_ranks(2, [&](const World& ranks) {
      Control& world = ranks.control;
      RankState state(model, plan[static_cast<std::size_t>(world.rank())]);
      std::unique_ptr<FolderOwner> owner;
      if (owned && world.rank() == 0) {
        OwnerFacts facts = facts_of_this_process("here");
        facts.job = "the same";
        // After a refusal it is requeued once more: the later start has the folder, so neither waits for the other's
        // end.
        while (owner == nullptr) {
          facts.restart = std::chrono::steady_clock::now().time_since_epoch().count();
          owner = owner_of(folder, facts);
        }
      }
      world.barrier();
      CheckpointWriter writer(state.device(), folder, keep, owner.get());
      for (std::int64_t mine = iteration;; mine += 2) {
        state.fill(mine);
        static_cast<void>(
            writer.begin(world, mine, state.storage(), state.optimizer(), state.written(), facts_of(model)));
        const auto outcome = writer.finish(world);
        if (world.rank() == 0) iteration = mine;
        if (!outcome || outcome->taken_over) return;
      }
    });
    ::usleep(static_cast<useconds_t>(random() % 300000));
  }
}

class TwoTrainings : public Checkpoint, public ::testing::WithParamInterface<std::tuple<int, bool>> {};

TEST_P(TwoTrainings, LeaveACompleteCheckpointAtEveryMoment) {
  const auto [keep, owned] = GetParam();
  const Model model = gpt_model();
  const char* const wanted = std::getenv("SAILOR_LOOKS");
  const int looks = wanted != nullptr ? std::atoi(wanted) : 1000;
  std::vector<pid_t> children;
  for (int which = 0; which < 2; ++which) {
    const pid_t child = ::fork();
    ASSERT_GE(child, 0);
    if (child == 0) contend(folder_, model, keep, owned, which);
    children.push_back(child);
  }
  const auto start = std::chrono::steady_clock::now();
  const auto newest = [&]() -> std::optional<CheckpointEntry> {
    auto found = find_latest(folder_);
    return found ? *std::move(found) : std::nullopt;
  };
  while (!newest() && std::chrono::steady_clock::now() - start < std::chrono::seconds(60)) ::usleep(1000);
  std::set<std::string> seen;
  std::array<int, 2> written_by{};  // looks that found a checkpoint of each: one writes even iterations, one odd ones
  int without = 0;
  int damaged = 0;
  // On a busy machine the writers may be slower than so many looks, and so many looks slower than a test may be.
  const auto usual = std::chrono::steady_clock::now() + std::chrono::seconds(5);
  const auto latest = std::chrono::steady_clock::now() + std::chrono::minutes(1);
  const auto is_slow = [&] {
    return (seen.size() <= 3U || written_by[0] == 0 || written_by[1] == 0) && std::chrono::steady_clock::now() < latest;
  };
  const auto goes_on = [&](int look) {
    return look < looks && (wanted != nullptr || std::chrono::steady_clock::now() < usual);
  };
  for (int look = 0; goes_on(look) || is_slow(); ++look) {
    // Of what is there when one looks, all can be read as it was written, or is gone since there is a newer one.
    const auto entry = newest();
    if (!entry) {
      ++without;
      continue;
    }
    seen.insert(entry->path.filename().string());
    ++written_by[static_cast<std::size_t>(entry->iteration % 2)];
    const auto gone = [&] { return !fs::exists(entry->path); };
    auto reader = CheckpointReader::open(entry->path);
    const auto verified = reader ? reader->verify() : fail(reader.error());
    if (!verified && !gone()) {
      ++damaged;
      ADD_FAILURE() << verified.error().message();
    }
    // Manifests are there only with all files.
    for (const auto& folder : fs::directory_iterator(folder_)) {
      if (!is_checkpoint_folder_name(folder.path().filename().string()) || !fs::exists(folder.path() / manifest_name))
        continue;
      const auto manifest = read_manifest(folder.path());
      if (!manifest && fs::exists(folder.path() / manifest_name)) ADD_FAILURE() << manifest.error().message();
    }
  }
  for (const pid_t child : children) {
    ::kill(child, SIGKILL);
    int status = 0;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    EXPECT_TRUE(WIFSIGNALED(status)) << "a writer ended by itself";
  }
  EXPECT_EQ(without, 0) << "looks without a checkpoint, of " << looks;
  EXPECT_EQ(damaged, 0);
  EXPECT_GT(seen.size(), 3U) << "too few checkpoints were written";
  EXPECT_GT(written_by[0], 0) << "the first training never had the folder";
  EXPECT_GT(written_by[1], 0) << "the second training never had the folder";
}

INSTANTIATE_TEST_SUITE_P(Checkpoint, TwoTrainings, ::testing::Combine(::testing::Values(1, 2), ::testing::Bool()),
                         [](const auto& parameters) {
                           return fmt::format("Keep{}{}", std::get<0>(parameters.param),
                                              std::get<1>(parameters.param) ? "TakingOver" : "Unaware");
                         });

// ---- Manifests

/// The manifest of a small checkpoint, changed, and sealed again.
class Manifests : public Checkpoint {
 protected:
  void SetUp() override {
    Checkpoint::SetUp();
    Model model = gpt_model();
    model.blocks = 1;
    text_ = read_all(write(folder_, model, one_rank(model), 1).folder / manifest_name);
  }
  std::string message(const std::function<void(nlohmann::ordered_json&)>& change) const {
    auto json = nlohmann::ordered_json::parse(text_);
    json.erase("checksum");
    change(json);
    const auto parsed = parse_manifest(seal_manifest(json.dump()), "m");
    return parsed ? "good" : parsed.error().message();
  }
  std::string text_;
};

TEST_F(Manifests, ReadAsTheyWereWritten) {
  const auto manifest = parse_manifest(text_, "m");
  ASSERT_TRUE(manifest.has_value()) << manifest.error().message();
  EXPECT_EQ(manifest_text(*manifest), text_);
  EXPECT_EQ(message([](auto&) {}), "good");
}

TEST_F(Manifests, HostileOnesAreRefused) {
  using Json = nlohmann::ordered_json;
  const auto expect = [&](const std::string& part, const std::function<void(Json&)>& change) {
    const std::string said = message(change);
    EXPECT_NE(said.find(part), std::string::npos) << part << ": " << said;
  };
  expect("has schema_version 2, but this Sailor knows versions up to 1; use the newer Sailor that wrote it",
         [](Json& json) { json["schema_version"] = 2; });
  expect("is no manifest of a Sailor checkpoint", [](Json& json) { json["format"] = "other"; });
  expect("key 'iteration' is missing", [](Json& json) { json.erase("iteration"); });
  expect("iteration must be an integer", [](Json& json) { json["iteration"] = -1; });
  expect("iteration must be an integer", [](Json& json) { json["iteration"] = 1e300; });
  expect("iteration must be an integer", [](Json& json) { json["iteration"] = 0xffffffffffffffffu; });
  expect("seed must be", [](Json& json) { json["training"]["seed"] = "x"; });
  expect("element_type 'bfloat16' is not known", [](Json& json) { json["element_type"] = "bfloat16"; });
  for (const char* name : {"../../etc/passwd", "/etc/passwd", "a/b", "", "..", ".hidden", "a\nb"})
    expect("is no name of a file", [&](Json& json) { json["files"][0]["name"] = name; });
  expect("a file's bytes must be", [](Json& json) { json["files"][0]["bytes"] = std::int64_t{1} << 60; });
  expect("do not lie in a file", [](Json& json) { json["files"][0]["bytes"] = 100; });
  const auto piece = [](Json& json, int field) -> Json& { return json["tensors"][0]["value"][0][field]; };
  expect("are missing", [&](Json& json) { piece(json, 0) = 1; });
  expect("must be an integer", [&](Json& json) { piece(json, 1) = 0; });
  expect("must be an integer", [&](Json& json) { piece(json, 1) = std::int64_t{1} << 40; });
  expect("by its shape", [&](Json& json) { piece(json, 1) = 3; });
  expect("do not lie in a file", [&](Json& json) { piece(json, 2) = 1000; });
  expect("do not lie in a file", [&](Json& json) { piece(json, 3) = 0x7fffffffffffffff; });
  expect("must have 16 hexadecimal digits", [&](Json& json) { piece(json, 4) = "0x12345678123456"; });
  expect("must have five fields", [](Json& json) { json["tensors"][0]["value"][0].erase(4); });
  expect("there twice", [](Json& json) {
    Json copy = json["tensors"][0]["value"][0];
    json["tensors"][0]["value"].push_back(std::move(copy));
  });
  expect("has 0 elements of its value", [](Json& json) { json["tensors"][0]["value"] = Json::array(); });
  expect("is there twice", [](Json& json) {
    Json copy = json["tensors"][0];
    json["tensors"].push_back(std::move(copy));
  });
  expect("bad shape", [](Json& json) { json["tensors"][0]["shape"] = {1 << 30, 1 << 30, 1 << 30}; });
  expect("bad shape", [](Json& json) { json["tensors"][0]["shape"] = Json::array(); });
  expect("an extent must be", [](Json& json) { json["tensors"][0]["shape"] = {0, 5}; });
  std::string deep(100'000, '[');
  EXPECT_FALSE(parse_manifest(seal_manifest("{\"format\": " + deep), "m").has_value());
  for (const char* text : {"", "{}", "\n}\n", "null"}) EXPECT_FALSE(parse_manifest(text, "m").has_value()) << text;
}

TEST_F(Manifests, BytesThatNoTensorHasAreNoticed) {
  const fs::path checkpoint = folder_ / "iteration-00000001";
  auto json = nlohmann::ordered_json::parse(text_);
  json.erase("checksum");
  // The second moments of one tensor become zeros: all is in order but for the bytes that are left over.
  json["tensors"][0]["second_moment"] = nlohmann::ordered_json::array();
  write_all(checkpoint / manifest_name, seal_manifest(json.dump()));
  const auto verified = CheckpointReader::open(checkpoint).value().verify();
  ASSERT_FALSE(verified.has_value());
  EXPECT_NE(verified.error().what.find("belong to no tensor"), std::string::npos) << verified.error().what;
}

}  // namespace
}  // namespace sailor::runtime::test::checkpoint_test
