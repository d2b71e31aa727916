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
  struct Result {
    std::vector<SetScores> sets;
    std::vector<ScoredPair> pairs;
    AnswerScores answers(std::size_t set) const {
      return AnswerScores::of_integers(sets[set].all.of("answers"));
    }
  };
  Result scores(Mesh& mesh, int zero, std::vector<AnswerOptions> options) {
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
    SalmScorer scorer(instance, *data, tokenizer.get(), std::move(options));
    Result result;
    for (int set = 0; set < scorer.sets(); ++set)
      result.sets.push_back(
          score_set(instance, scorer, set, nullptr, set == 0 ? &result.pairs : nullptr));
    return result;
  }
  /// Equal on one rank and on all ranks with this stage of ZeRO.
  void expect_same(const Result& all, const Result& alone) {
    for (const std::size_t set : {0, 1}) {
      EXPECT_EQ(all.sets[set].all.losses, alone.sets[set].all.losses) << "bit by bit";
      EXPECT_EQ(all.sets[set].all.counters, alone.sets[set].all.counters);
      EXPECT_GT(all.sets[set].all.losses.first(), 0);
    }
    if (comm().rank() != 0) return;
    ASSERT_EQ(all.pairs.size(), alone.pairs.size());
    for (std::size_t i = 0; i < all.pairs.size(); ++i) {
      EXPECT_EQ(all.pairs[i].reference, alone.pairs[i].reference);
      EXPECT_EQ(all.pairs[i].answer, alone.pairs[i].answer);
    }
  }

  SalmConfig model_ = test::tiny_salm(257);
  CpuDevice device_;
  std::unique_ptr<Mesh> mesh_;
  std::unique_ptr<ScratchFolder> scratch_;
  ConversationConfig config_;
};

TEST_F(SalmScoresTest, AreTheSameOnAnyNumberOfRanks) {
  for (const std::int64_t conversations : {0, 4, -1}) {
    const AnswerOptions options{.conversations = conversations, .tokens = 5};
    test::SingleRank single;
    const Result alone = scores(*single.mesh, 0, {options, options});
    EXPECT_EQ(alone.answers(0).answers, conversations == 0 ? kTalks : std::max(conversations, 0L));
    EXPECT_EQ(alone.pairs.size(), conversations >= 0 ? 3U : 0U);
    for (const int zero : {0, 3}) expect_same(scores(*mesh_, zero, {options, options}), alone);
  }
}

TEST_F(SalmScoresTest, SetsHaveTheirOwnAnswersAndDurations) {
  const AnswerOptions greedy{.conversations = 0, .tokens = 5}, few{.conversations = 1, .tokens = 2};
  AnswerOptions sampled = greedy;
  sampled.choice = {.temperature = 2, .top_k = 50, .top_p = 0.95, .seed = 7, .stop = {}};
  test::SingleRank single;
  const Result usual = scores(*single.mesh, 0, {greedy, greedy});
  const Result own = scores(*single.mesh, 0, {sampled, few});
  EXPECT_EQ(own.sets[0].all.losses, usual.sets[0].all.losses);
  EXPECT_NE(own.answers(0), usual.answers(0)) << "other answers to the same conversations";
  EXPECT_EQ(own.answers(0).answers, kTalks);
  EXPECT_EQ(own.answers(1).answers, 1);
  for (const int zero : {0, 3}) expect_same(scores(*mesh_, zero, {sampled, few}), own);
  // Clips have 0.7 to 3.2 s; a conversation has one or two.
  config_.eval[0].filter = {.min_duration = 2, .max_duration = 4};
  const Result filtered = scores(*single.mesh, 0, {greedy, few});
  EXPECT_GT(filtered.answers(0).answers, 0);
  EXPECT_LT(filtered.answers(0).answers, kTalks);
  expect_same(scores(*mesh_, 0, {greedy, few}), filtered);
  config_.eval[0].filter = {.min_duration = 900};
  EXPECT_NE(test::data_error_of([&] {
              scores(*mesh_, 0, {greedy, few});
            }).find("validation set 'all' has no conversation with 900 to"),
            std::string::npos);
}

}  // namespace
}  // namespace choir
