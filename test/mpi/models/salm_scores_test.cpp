// Tests that answers to validation conversations get the same scores on one rank and on all ranks,
// with whole and with sharded parameters, although ranks have different numbers of answers and of
// micro-batches.
#include <filesystem>

#include "choir/comm/mesh/mesh.hpp"
#include "src/core/file.hpp"
#include "src/data/vocabulary/vocabulary.hpp"
#include "src/models/salm/evaluation.hpp"
#include "test/support/mpi_test.hpp"
#include "test/unit/data/packed_speech.hpp"
#include "test/unit/models/salm/salm_case.hpp"

namespace choir {
namespace {

using test::PackedSpeech;
using test::ScratchFolder;

constexpr std::int64_t kTalks = 11;

/// A word or two about a clip or two, encoded as bytes and </s>.
ConversationSet talks(const PackedSpeech& speech) {
  const auto tokenizer = chat_tokenizer(Vocabulary::bytes(), ChatTemplate::plain);
  ConversationSet set(257, tokenizer->hash(), 256);
  for (std::int64_t i = 0; i < kTalks; ++i) {
    std::vector<std::int32_t> ids(static_cast<std::size_t>(1 + i % 3), 'a');
    std::vector<ClipOfFile> clips;
    for (std::int64_t c = 0; c < 1 + i % 2; ++c) {
      ids.push_back(kAudioPlaceholder);
      clips.push_back(
          {static_cast<std::int32_t>(i + c), static_cast<std::int32_t>(speech.samples(i + c))});
    }
    const std::size_t prompt = ids.size();
    for (const char letter : i % 2 == 0 ? std::string("yes it is") : std::string("no"))
      ids.push_back(letter);
    ids.push_back(256);
    std::vector<std::uint8_t> counted(ids.size(), 0);
    std::fill(counted.begin() + static_cast<std::ptrdiff_t>(prompt), counted.end(), 1);
    set.add(ids, counted, clips);
  }
  return set;
}

class SalmScoresTest : public testing::Test {
 protected:
  SalmScoresTest()
      : mesh_(Mesh::over_world(Layout(1, 1, test::world_size(), 1), Transport::automatic)) {
    std::int64_t id = ::getpid();
    comm().broadcast(&id, sizeof id, 0);
    if (comm().rank() == 0) scratch_ = std::make_unique<ScratchFolder>(id, true);
    comm().barrier();
    if (comm().rank() != 0) scratch_ = std::make_unique<ScratchFolder>(id, false);
    const std::string folder = *scratch_ / "talks";
    const PackedSpeech speech{folder + "/audio", 0, kTalks + 1, 2};
    if (comm().rank() == 0) {
      speech.write();
      write_whole_file(folder + "/" + kConversationFile, talks(speech).serialise());
    }
    comm().barrier();
    config_.eval = {{.name = "all", .folders = {folder}}, {.name = "few", .folders = {folder}}};
    config_.eval.back().limit = 2;
    config_.frames = model_.encoder.speech_frames();
    config_.batch_tokens = 60;
  }
  ~SalmScoresTest() override { comm().barrier(); }

  Communicator& comm() { return mesh_->world(); }
  std::vector<SalmSetScores> scores(Mesh& mesh, int zero, std::int64_t conversations) {
    ModelInstance instance({.model = model_,
                            .precision = precision_of("fp64"),
                            .seed = 3,
                            .training = true,
                            .zero = {.stage = zero}},
                           device_, mesh, std::size_t{1} << 26);
    instance.initialise(3);
    const auto data = ConversationBatches::open(mesh.world(), mesh.coordinates()[Axis::data],
                                                mesh.layout().size(Axis::data), config_);
    const auto tokenizer = chat_tokenizer(Vocabulary::bytes(), ChatTemplate::plain);
    return score_conversations(instance, *data, tokenizer.get(),
                               {.conversations = conversations, .tokens = 5}, nullptr);
  }

  SalmConfig model_ = test::tiny_salm(257);
  CpuDevice device_;
  std::unique_ptr<Mesh> mesh_;
  std::unique_ptr<ScratchFolder> scratch_;
  ConversationConfig config_;
};

TEST_F(SalmScoresTest, AreTheSameOnAnyNumberOfRanks) {
  for (const std::int64_t conversations : {0, 4, -1}) {
    test::SingleRank single;
    const auto alone = scores(*single.mesh, 0, conversations);
    EXPECT_EQ(alone[0].answers.answers, conversations == 0 ? kTalks : std::max(conversations, 0L));
    for (const int zero : {0, 3}) {
      const auto all = scores(*mesh_, zero, conversations);
      for (const std::size_t set : {0, 1}) {
        EXPECT_EQ(all[set].loss, alone[set].loss) << "bit by bit";
        EXPECT_EQ(all[set].targets, alone[set].targets);
        EXPECT_EQ(all[set].answers, alone[set].answers);
        EXPECT_GT(all[set].loss, 0);
      }
      if (comm().rank() == 0 && conversations >= 0) {
        ASSERT_EQ(all[0].pairs.size(), 3U);
        for (std::size_t i = 0; i < 3; ++i) {
          EXPECT_EQ(all[0].pairs[i].reference, alone[0].pairs[i].reference);
          EXPECT_EQ(all[0].pairs[i].answer, alone[0].pairs[i].answer);
        }
      }
    }
  }
}

}  // namespace
}  // namespace choir
