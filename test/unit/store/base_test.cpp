// Checkpoints that leave tensors in a base: frozen weights that another checkpoint has.
#include <gtest/gtest.h>

#include "src/comm/null_communicator.hpp"
#include "test/unit/store/fixtures.hpp"

namespace choir {
namespace {

namespace fs = std::filesystem;
using test::Cut;
using test::TensorSet;

constexpr std::size_t kLeftOut = 3;  // the parameters, which are the first tensors of a set

class BaseOfCheckpointTest : public ::testing::Test {
 protected:
  BaseOfCheckpointTest() {
    TensorSet whole(Cut::everything, 0, 1);
    whole.fill();
    CheckpointStore base(folder("base"), *alone_);
    EXPECT_TRUE(base.save(test::meta_of(2), whole.tensors()).saved);
    save_on_top("tuned", folder("base"));
  }
  std::string folder(const std::string& run) { return run_.path() + "/" + run + "/checkpoints"; }

  /// Saves step 3 of a run without its parameters, which are those of `from`.
  void save_on_top(const std::string& run, const std::string& from) {
    const Checkpoint base = open_checkpoint(from, *alone_);
    CheckpointMeta meta = test::meta_of(3);
    TensorSet set(Cut::everything, 0, 1);
    set.fill();
    for (std::size_t i = 0; i < kLeftOut; ++i)
      refer_to(meta.bases, base, set.tensors()[i].name, set.tensors()[i].name);
    set.tensors().erase(set.tensors().begin(), set.tensors().begin() + kLeftOut);
    CheckpointStore store(folder(run), *alone_);
    EXPECT_TRUE(store.save(meta, set.tensors()).saved);
  }
  std::int64_t wrong_of(const std::string& run) {
    const Checkpoint found = open_checkpoint(folder(run), *alone_);
    TensorSet set(Cut::slices, 0, 1);
    set.poison();
    load_checkpoint(found, set.tensors(), *alone_);
    return set.wrong();
  }
  std::string refusal_of(const std::string& run, Verify verify = Verify::checksums) {
    try {
      open_checkpoint(folder(run), *alone_, verify);
      return {};
    } catch (const StorageError& error) {
      return std::string(error.what()) + " | " + error.hint();
    }
  }
  void expect_refusal(const std::string& run, const std::string& words,
                      Verify verify = Verify::checksums) {
    const std::string said = refusal_of(run, verify);
    EXPECT_NE(said.find(words), std::string::npos) << said;
    EXPECT_NE(said.find(folder("base")), std::string::npos) << said;
  }

  test::TemporaryDirectory run_;
  std::unique_ptr<Communicator> alone_ = make_null_communicator("alone", 0, 1);
};

TEST_F(BaseOfCheckpointTest, HasEveryTensorAndIsSmall) {
  EXPECT_EQ(wrong_of("tuned"), 0);
  const Manifest manifest = open_checkpoint(folder("tuned"), *alone_).manifest;
  ASSERT_EQ(manifest.bases.size(), 1u);
  EXPECT_EQ(manifest.bases[0].tensors.size(), kLeftOut);
  EXPECT_EQ(manifest.bases[0].relative, "../../../base/checkpoints/step_00000002");
  for (const TensorRecord& record : manifest.tensors)
    EXPECT_FALSE(record.name.starts_with("parameters/"));
  EXPECT_NE(manifest.find("parameters/embedding.weight"), nullptr);
  EXPECT_EQ(manifest.all_tensors().size(), manifest.tensors.size() + kLeftOut);
}

TEST_F(BaseOfCheckpointTest, ARunOnTopOfSuchARunRefersToTheSameFile) {
  save_on_top("third", folder("tuned"));
  const Manifest manifest = open_checkpoint(folder("third"), *alone_).manifest;
  ASSERT_EQ(manifest.bases.size(), 1u);
  EXPECT_EQ(manifest.bases[0].path, open_checkpoint(folder("base"), *alone_).path);
  fs::remove_all(run_.path() + "/tuned");
  EXPECT_EQ(wrong_of("third"), 0);
}

TEST_F(BaseOfCheckpointTest, IsFoundWhereItWasOrBesideTheRun) {
  fs::create_directories(run_.path() + "/moved");
  for (const char* run : {"base", "tuned"})
    fs::rename(run_.path() + "/" + run, run_.path() + "/moved/" + run);
  EXPECT_EQ(wrong_of("moved/tuned"), 0) << "by its relative path";
  fs::rename(run_.path() + "/moved/base", run_.path() + "/base");
  EXPECT_EQ(wrong_of("moved/tuned"), 0) << "by its absolute path";
}

TEST_F(BaseOfCheckpointTest, ThatIsGoneOrChangedIsNamed) {
  const std::string kept = run_.path() + "/kept";
  fs::rename(run_.path() + "/base", kept);
  expect_refusal("tuned", "put the base back", Verify::sizes);
  expect_refusal("tuned", "its frozen weights are stored in its base");
  TensorSet others(Cut::everything, 0, 1, 99);
  others.fill();
  EXPECT_TRUE(
      CheckpointStore(folder("base"), *alone_).save(test::meta_of(2), others.tensors()).saved);
  expect_refusal("tuned", "has other weights now", Verify::sizes);
  fs::remove_all(run_.path() + "/base");
  fs::rename(kept, run_.path() + "/base");
  EXPECT_EQ(wrong_of("tuned"), 0);
}

TEST_F(BaseOfCheckpointTest, DamageOfTheBaseIsSeen) {
  const Checkpoint base = open_checkpoint(folder("base"), *alone_);
  const TensorRecord& record = *base.manifest.find("parameters/embedding.weight");
  test::flip_bit(base.path + "/state.h5", record.offset + 5);
  EXPECT_EQ(refusal_of("tuned", Verify::sizes), "");
  expect_refusal("tuned", "tensor parameters/embedding.weight");
}

TEST_F(BaseOfCheckpointTest, ManifestsWithFalseBasesAreRefused) {
  Manifest manifest = open_checkpoint(folder("tuned"), *alone_).manifest;
  const auto refused = [&] {
    EXPECT_THROW(Manifest::parse(manifest.to_text()), StorageError);
    manifest = open_checkpoint(folder("tuned"), *alone_).manifest;
  };
  manifest.bases[0].path = "a\nb", refused();
  manifest.bases[0].relative = "", refused();
  manifest.bases[0].tensors[0].name = manifest.tensors[0].name, refused();
  manifest.bases[0].tensors[0].offset = manifest.bases[0].state_bytes, refused();
  manifest.bases[0].state_bytes = 1, refused();
}

}  // namespace
}  // namespace choir
