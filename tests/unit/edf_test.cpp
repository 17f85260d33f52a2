// Environment definition files of containers: which files of the host a job in a container sees.
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "slurm/edf.hpp"

namespace sailor::slurm::edf_test {
namespace {

namespace fs = std::filesystem;
using Paths = std::vector<fs::path>;

class EdfMounts : public ::testing::Test {
 protected:
  void SetUp() override { fs::create_directories(folder_); }
  void TearDown() override { fs::remove_all(folder_); }
  void write(const std::string& name, const std::string& text) const { std::ofstream(folder_ / name) << text; }
  [[nodiscard]] std::string error_of(const std::string& image) const {
    const auto mounts = read_edf_mounts(image, environment_);
    return mounts ? "no error" : mounts.error().message();
  }

  fs::path folder_ = fs::path(::testing::TempDir()) / ("edf." + std::to_string(::getpid()));
  std::map<std::string, std::string> environment_{{"EDF_PATH", "/nowhere:" + folder_.string()},
                                                  {"SCRATCH", "/capstor/scratch/anna"}};
};

TEST_F(EdfMounts, AreThoseOfTheFileAndOfWhatItIsBasedOn) {
  write("last.toml", "image = \"y.sqsh\"\n");
  write("base.toml",
        "base_environment = [\"last\"]\nimage = \"x.sqsh\"\nmounts = [\"/iopsstor:/iopsstor:ro\"]\n[env]\nA = \"1\"\n");
  write("mine.toml",
        "base_environment = \"base\"\nmounts = [\"${SCRATCH}:${SCRATCH}\", \"/users/anna/code:/code/\"]\n");
  for (const std::string& image : {std::string("mine"), (folder_ / "mine.toml").string()}) {
    const auto mounts = read_edf_mounts(image, environment_);
    ASSERT_TRUE(mounts.has_value()) << mounts.error().message();
    EXPECT_EQ(mounts->file, folder_ / "mine.toml");
    EXPECT_EQ(mounts->inside, (Paths{"/iopsstor", "/capstor/scratch/anna", "/code/"}));
    EXPECT_EQ(not_mounted(*mounts, {"/capstor/scratch/anna/run-1", "/capstor/scratch/anna", "/iopsstor/./data",
                                    "/code/x", "/capstor/scratch/anna2", "/users/anna/code", "/iopsstor/../home"}),
              (Paths{"/capstor/scratch/anna2", "/users/anna/code", "/iopsstor/../home"}));
  }
}

TEST_F(EdfMounts, OfTheShippedFileAreReadable) {
  const auto mounts = read_edf_mounts(SAILOR_SOURCE_DIR "/packaging/container/sailor.toml", environment_);
  ASSERT_TRUE(mounts.has_value()) << mounts.error().message();
  EXPECT_EQ(mounts->inside, (Paths{"/capstor/scratch/anna"}));
}

TEST_F(EdfMounts, AreNotKnownWhereAVariableIsNotSet) {
  write("mine.toml", "mounts = [\"${STORE}:/store\", \"/a:/a\"]\n");
  const auto mounts = read_edf_mounts("mine", environment_);
  ASSERT_TRUE(mounts.has_value()) << mounts.error().message();
  EXPECT_EQ(mounts->unknown, (std::vector<std::string>{"${STORE}:/store"}));
  EXPECT_TRUE(not_mounted(*mounts, {"/b"}).empty());
}

TEST_F(EdfMounts, NeedAFileThatCanBeRead) {
  EXPECT_EQ(error_of("other"),
            "there is no EDF 'other' in EDF_PATH or ~/.edf; correct --image, or name the file with its path");
  EXPECT_EQ(error_of("/nowhere/x.toml"), "there is no EDF '/nowhere/x.toml'; correct --image");
  write("loop.toml", "base_environment = \"loop\"\n");
  EXPECT_NE(error_of("loop").find("is based on more than 10 others"), std::string::npos) << error_of("loop");
  write("bad.toml", "mounts = [\n");
  EXPECT_NE(error_of("bad").find("bad.toml:"), std::string::npos) << error_of("bad");
  for (const char* key : {"mounts", "base_environment"}) {
    write("number.toml", key + std::string(" = 3\n"));
    EXPECT_NE(error_of("number").find("number.toml:1:"), std::string::npos) << error_of("number");
  }
}

}  // namespace
}  // namespace sailor::slurm::edf_test
