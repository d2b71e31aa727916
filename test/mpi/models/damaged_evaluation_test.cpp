// Tests that validation leaves recordings that turn out to be damaged out of all sums: the results
// are those of a set from which the same recordings were left out when it was opened. On any number
// of ranks.
#include "choir/comm/mesh/mesh.hpp"
#include "src/models/codec/evaluation.hpp"
#include "src/models/fastconformer/evaluation.hpp"
#include "test/support/mpi_test.hpp"
#include "test/unit/data/packed_speech.hpp"
#include "test/unit/models/fastconformer/fastconformer_case.hpp"

namespace choir {
namespace {

using test::PackedSpeech;
using test::ScratchFolder;

constexpr std::int64_t kUtterances = 23, kDamaged = 2;

class DamagedEvaluationTest : public testing::Test {
 protected:
  DamagedEvaluationTest()
      : mesh_(Mesh::over_world(Layout(1, 1, test::world_size(), 1), Transport::automatic)) {
    std::int64_t id = ::getpid();
    comm().broadcast(&id, sizeof id, 0);
    if (comm().rank() == 0) scratch_ = std::make_unique<ScratchFolder>(id, true);
    comm().barrier();
    if (comm().rank() != 0) scratch_ = std::make_unique<ScratchFolder>(id, false);
    const PackedSpeech speech{*scratch_ / "speech", 0, kUtterances, 2};
    if (comm().rank() == 0) {
      speech.write();
      for (const std::int64_t utterance : {4, 11}) speech.damage(utterance);
    }
    comm().barrier();
    config_.eval = {{.name = "v", .folders = {*scratch_ / "speech"}, .tags = {{{"lang", "en"}}}}};
    config_.on_bad = OnBad::skip;
    config_.bad_cap = 0.5;
    config_.batching.batch_duration = 7;
  }
  ~DamagedEvaluationTest() override { comm().barrier(); }

  Communicator& comm() { return mesh_->world(); }
  /// The set whose damage is found when it is opened, or only when it is read.
  std::unique_ptr<SpeechDataset> open(bool when_read) {
    SpeechDataConfig config = config_;
    if (when_read) config.verify_bytes = 0;
    return SpeechDataset::open(mesh_->host_along(Axis::data), config);
  }
  ModelInstance instance(const ModelConfig& model) {
    return {{.model = model, .precision = precision_of("fp64"), .seed = 3, .training = true},
            device_,
            *mesh_,
            std::size_t{1} << 26};
  }
  static void expect_same(const SetScores& read, const SetScores& opened) {
    EXPECT_EQ(read.all.counters, opened.all.counters);
    EXPECT_EQ(read.tags.at("lang=en").counters, opened.tags.at("lang=en").counters);
    EXPECT_EQ(read.all.count(kComparedCounter), kUtterances - kDamaged);
    // The rows share micro-batches with others.
    ASSERT_EQ(read.all.losses.size(), opened.all.losses.size());
    for (std::size_t t = 0; t < read.all.losses.size(); ++t) {
      EXPECT_GT(read.all.losses[t], 0);
      EXPECT_NEAR(read.all.losses[t] / opened.all.losses[t], 1, 1e-12);
    }
  }

  std::unique_ptr<Mesh> mesh_;
  std::unique_ptr<ScratchFolder> scratch_;
  SpeechDataConfig config_;
  CpuDevice device_;
};

TEST_F(DamagedEvaluationTest, OfARecogniser) {
  FastConformerConfig model = test::tiny_conformer();
  model.mel.sample_rate = 1000;
  model.mel.hop = 10, model.mel.window = 25, model.mel.fft = 256, model.mel.mels = 8;
  model.vocab_size = 9;
  ModelInstance recogniser = instance(model);
  recogniser.initialise(3);
  config_.labels = "test";
  config_.frames = model.speech_frames();
  const auto scores = [&](bool when_read) {
    SpeechData data{open(when_read),
                    Vocabulary::characters({U'a', U'b', U'c', U'd', U'e', U'f', U'g', U'h', U' '})};
    SpeechScorer scorer(recogniser, data);
    return score_set(recogniser, scorer, 0, nullptr);
  };
  expect_same(scores(true), scores(false));
}

TEST_F(DamagedEvaluationTest, OfACodec) {
  CodecConfig model{.encoder_width = 12, .decoder_width = 10, .codebooks = 2, .levels = "5,3"};
  model.mel.sample_rate = 1000;
  model.mel.hop = 10, model.mel.window = 25, model.mel.fft = 256, model.mel.mels = 8;
  model.complete();
  ModelInstance codec = instance(model);
  codec.initialise(3);
  config_.frames = {.hop = model.mel.hop, .stages = 0};
  const auto scores = [&](bool when_read) {
    const auto data = open(when_read);
    CodecScorer scorer(codec, *data);
    return score_set(codec, scorer, 0, nullptr);
  };
  expect_same(scores(true), scores(false));
}

}  // namespace
}  // namespace choir
