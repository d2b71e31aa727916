// Tests that conversations with clips give the same rows on any number of ranks; the expected rows
// come from formulas.
#include "src/data/chat/conversation_batches.hpp"

#include <filesystem>
#include <map>

#include "choir/comm/mesh/mesh.hpp"
#include "src/core/file.hpp"
#include "test/support/mpi_test.hpp"
#include "test/unit/data/packed_speech.hpp"

namespace choir {
namespace {

using test::kPackedFrames;
using test::PackedSpeech;
using test::ScratchFolder;

constexpr std::int64_t kCount = 57;

/// Conversation i: 2 + i mod 3 tokens, clips i and (every fourth) i + 1, then two targets.
std::int64_t clips_of(std::int64_t i) {
  return i % 5 == 4 ? 0 : i % 4 == 0 ? 2 : 1;
}

ConversationSet conversations(const PackedSpeech& speech) {
  ConversationSet set(100, 7, 99);
  for (std::int64_t i = 0; i < kCount; ++i) {
    std::vector<std::int32_t> ids(static_cast<std::size_t>(2 + i % 3), 50);
    std::vector<ClipOfFile> clips;
    for (std::int64_t c = 0; c < clips_of(i); ++c) {
      ids.push_back(-1);
      clips.push_back(
          {static_cast<std::int32_t>(i + c), static_cast<std::int32_t>(speech.samples(i + c))});
    }
    ids.push_back(static_cast<std::int32_t>(i));
    ids.push_back(99);
    std::vector<std::uint8_t> counted(ids.size(), 0);
    counted[ids.size() - 1] = counted[ids.size() - 2] = 1;
    set.add(ids, counted, clips);
  }
  return set;
}

class ConversationBatchesTest : public testing::Test {
 protected:
  ConversationBatchesTest()
      : mesh_(Mesh::over_world(Layout(1, 1, test::world_size(), 1), Transport::automatic)) {
    std::int64_t id = ::getpid();
    comm().broadcast(&id, sizeof id, 0);
    if (comm().rank() == 0) scratch_ = std::make_unique<ScratchFolder>(id, true);
    comm().barrier();
    if (comm().rank() != 0) scratch_ = std::make_unique<ScratchFolder>(id, false);
    folder_ = *scratch_ / "talk";
    speech_ = {folder_ + "/audio", 0, kCount + 1, 2};
    if (comm().rank() == 0) {
      speech_.write();
      write_whole_file(folder_ + "/" + kConversationFile, conversations(speech_).serialise());
    }
    comm().barrier();
    config_.train = SpeechMix::of_folders({folder_});
    config_.eval = {{.name = "all", .folders = {folder_}}};
    config_.frames = kPackedFrames;
    config_.batch_tokens = 400;
    config_.window = 30;
    config_.order_seed = 5;
  }
  ~ConversationBatchesTest() override { comm().barrier(); }

  Communicator& comm() { return mesh_->world(); }
  std::unique_ptr<ConversationBatches> open() {
    return ConversationBatches::open(comm(), comm().rank(), comm().size(), config_);
  }
  /// Checks every row of the batch against the formulas; counts how often each was seen.
  void look_at(const ConversationBatch& batch, std::vector<std::int64_t>& seen) {
    const auto* splice = batch.splice.as<std::int32_t>();
    const auto* targets = batch.targets.as<std::int32_t>();
    const auto* lengths = batch.lengths.as<std::int32_t>();
    const auto* audio = batch.audio.as<std::uint16_t>();
    EXPECT_LE(batch.rows * batch.tokens, config_.batch_tokens);
    std::int64_t clip = 0, counted = 0;
    for (std::size_t b = 0; b < batch.drawn.size(); ++b) {
      const std::int64_t i = batch.drawn[b].item.utterance;
      ++seen[static_cast<std::size_t>(i)];
      std::vector<std::int32_t> expected(static_cast<std::size_t>(2 + i % 3), 50);
      for (std::int64_t c = 0; c < clips_of(i); ++c, ++clip) {
        const std::int64_t samples = speech_.samples(i + c);
        for (std::int64_t f = 0; f < kPackedFrames.frames(samples); ++f)
          expected.push_back(static_cast<std::int32_t>(-1 - (clip * batch.clip_rows + f)));
        EXPECT_EQ(batch.audio_lengths.as<std::int32_t>()[clip], samples);
        EXPECT_EQ(batch.frame_lengths.as<std::int32_t>()[2 * batch.clips + clip],
                  kPackedFrames.frames(samples));
        const std::uint16_t* pcm = audio + clip * batch.audio.shape[1];
        for (const std::int64_t s : {std::int64_t{0}, samples - 1})
          EXPECT_EQ(static_cast<std::int16_t>(pcm[s]), speech_.sample(i + c, s));
        if (samples < batch.audio.shape[1]) {
          EXPECT_EQ(pcm[samples], 0);
        }
      }
      expected.push_back(static_cast<std::int32_t>(i));
      const auto row = static_cast<std::int64_t>(b) * batch.tokens;
      ASSERT_EQ(lengths[b], std::ssize(expected));
      EXPECT_TRUE(std::equal(expected.begin(), expected.end(), splice + row)) << i;
      const auto last = std::ssize(expected) - 1;
      EXPECT_EQ(targets[row + last - 1], i);
      EXPECT_EQ(targets[row + last], 99);
      counted += 2;
    }
    EXPECT_EQ(batch.counted, counted);
    EXPECT_EQ(batch.clips, std::max<std::int64_t>(clip, 1));
  }
  std::vector<std::int64_t> summed(std::vector<std::int64_t> seen) {
    comm().all_reduce(seen.data(), seen.size(), DType::i64, ReduceOp::sum);
    return seen;
  }

  std::unique_ptr<Mesh> mesh_;
  std::unique_ptr<ScratchFolder> scratch_;
  std::string folder_;
  PackedSpeech speech_;
  ConversationConfig config_;
};

TEST_F(ConversationBatchesTest, ValidateEveryConversationOnce) {
  const auto batches = open();
  std::vector<std::int64_t> seen(kCount, 0);
  for (std::int64_t call = 0; call < batches->eval_calls(0); ++call)
    look_at(batches->eval_batch(0, call), seen);
  EXPECT_EQ(summed(seen), std::vector<std::int64_t>(kCount, 1));
}

TEST_F(ConversationBatchesTest, TrainOnWhatTheSamplerSaysAndGoOnFromAnyStep) {
  constexpr std::int64_t kMicroBatches = 4, kSteps = 6;
  const auto batches = open();
  const auto order = [&](const SpeechCursor& from) {
    return SpeechOrder::of_rank(from, kMicroBatches, comm().rank(), comm().size());
  };
  // The batches of all ranks together are those that the sampler plans.
  std::vector<std::int64_t> seen(kCount, 0), planned(kCount, 0);
  SpeechSteps steps(batches->sampler(), batches->sampler().begin(), kMicroBatches);
  SpeechStep step;
  const SpeechOrder mine = order(batches->sampler().begin());
  batches->start_training(mine);
  SpeechCursor middle;
  std::vector<std::int32_t> late;
  for (std::int64_t s = 0; s < kSteps; ++s) {
    steps.next(step);
    for (const SpeechRow& row : step.rows) ++planned[static_cast<std::size_t>(row.item.utterance)];
    for (std::int64_t place = 0; place < mine.places; ++place) {
      const ConversationBatch& batch = batches->next();
      look_at(batch, seen);
      EXPECT_EQ(batch.step_targets, step.targets);
      const auto fits = [&](const ConversationShape& shape) {
        return batch.rows <= shape.rows && batch.tokens <= shape.tokens &&
               batch.clips <= shape.clips && batch.audio.shape[1] <= shape.samples;
      };
      EXPECT_TRUE(std::any_of(batches->shapes().begin(), batches->shapes().end(), fits));
      if (s == 2) middle = *batch.after;
      if (s > 2)
        late.insert(late.end(), batch.splice.as<std::int32_t>(),
                    batch.splice.as<std::int32_t>() + batch.splice.count());
    }
  }
  EXPECT_EQ(summed(seen), planned);
  batches->start_training(order(middle));
  std::vector<std::int32_t> again;
  for (std::int64_t call = 0; call < 3 * mine.places; ++call) {
    const ConversationBatch& batch = batches->next();
    again.insert(again.end(), batch.splice.as<std::int32_t>(),
                 batch.splice.as<std::int32_t>() + batch.splice.count());
  }
  EXPECT_EQ(again, late);
}

TEST_F(ConversationBatchesTest, RefuseWhatDoesNotFitTheModel) {
  config_.vocab_size = 99;
  EXPECT_DATA_ERROR(open(), "vocab_size is 99");
  config_.vocab_size = 0;
  config_.sample_rate = 16000;
  EXPECT_DATA_ERROR(open(), "samples a second");
  config_.sample_rate = 0;
  config_.max_tokens = 2;
  EXPECT_DATA_ERROR(open(), "no usable conversations");
  config_.max_tokens = 0;
  config_.eval = {{.name = "none", .folders = {folder_ + "/nowhere"}}};
  EXPECT_DATA_ERROR(open(), "there are no conversations");
}

}  // namespace
}  // namespace choir
