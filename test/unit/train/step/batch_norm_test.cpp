// Running statistics of batch normalisation in training on one rank.
#include "src/store/store.hpp"
#include "src/train/step/train_checkpoint.hpp"
#include "test/unit/store/fixtures.hpp"
#include "test/unit/train/speech_case.hpp"

namespace choir::test {
namespace {

TEST(BatchNormTraining, StatisticsFollowTheMicroBatches) {
  SingleRank single;
  SpeechRun run(speech_options(batch_normed(), "fp64", 3), *single.mesh);
  std::vector<double> expected = run.running();
  ASSERT_EQ(expected.size(), 2u * 2 * 16) << "two blocks of 16 channels";
  for (int step = 0; step < 3; ++step) {
    ASSERT_TRUE(run.step().updated);
    std::size_t at = 0;
    for (const RunningStatistics& norm : run.parameters().running_statistics())
      for (std::int64_t kind = 0; kind < 2; ++kind)
        for (std::int64_t c = 0; c < 16; ++c, ++at)
          for (std::int64_t m = 0; m < 3; ++m) {
            EXPECT_GT(norm.frames.as<double>()[m], 1);
            expected[at] =
                0.9 * expected[at] + 0.1 * norm.records.as<double>()[(2 * m + kind) * 16 + c];
          }
    const std::vector<double> found = run.running();
    for (std::size_t i = 0; i < found.size(); ++i)
      ASSERT_NEAR(found[i], expected[i], 1e-14 * std::max(1.0, std::abs(expected[i]))) << i;
  }
}

// The statistics that a micro-batch leaves are a function of it alone: in the first step, in which
// all runs have the same parameters. The counted frames are those of the utterances.
TEST(BatchNormTraining, RecordsAreThoseOfTheMicroBatchWhateverIsComputedAgain) {
  SingleRank single;
  FastConformerConfig c = batch_normed();
  c.stochastic_depth = 0.3;
  std::vector<double> plain;
  for (const Recompute recompute : {Recompute::none, Recompute::selective, Recompute::full}) {
    c.recompute = recompute;
    SpeechRun run(speech_options(c, "fp64", 2), *single.mesh);
    run.step();
    const TensorView frames = run.parameters().running_statistics()[0].frames;
    for (std::int64_t m = 0; m < 2; ++m) {
      const ModelBatch batch = run.speech().micro_batch(m);
      double count = 0;
      for (std::int64_t b = 0; b < batch.samples; ++b)
        count += batch["frame_lengths"].as<std::int32_t>()[c.stages() * batch.samples + b];
      EXPECT_EQ(frames.as<double>()[m], count);
    }
    if (plain.empty()) plain = run.running();
    EXPECT_EQ(run.running(), plain) << static_cast<int>(recompute);
  }
}

TEST(BatchNormTraining, EmptyMicroBatchesAndSkippedStepsChangeNothing) {
  SingleRank single;
  for (const char* precision : {"fp64", "bf16-mixed"}) {
    SpeechRun alone(speech_options(batch_normed(), precision, 2), *single.mesh);
    SpeechRun padded(speech_options(batch_normed(), precision, 4), *single.mesh, 2);
    ASSERT_TRUE(alone.step().updated);
    ASSERT_TRUE(padded.step().updated);
    const std::vector<double> before = padded.running();
    EXPECT_EQ(before, alone.running()) << precision;
    EXPECT_FALSE(padded.step(NAN).updated);
    EXPECT_EQ(padded.running(), before) << precision;
    ASSERT_TRUE(padded.step().updated);
    EXPECT_NE(padded.running(), before) << precision;
  }
}

TEST(BatchNormTraining, APlanIsWhatIsAllocated) {
  SingleRank single;
  SpeechRun run(speech_options(batch_normed(), "fp32", 3), *single.mesh);
  run.step();
  const std::size_t bytes = run.engine().memory().bytes_of("running statistics");
  // Values and records of two norms, and frames, each starting at a multiple of 64 elements.
  EXPECT_EQ(bytes, 4u * (2 * (64 + 64) + 2 * 128 + 64));
  EXPECT_EQ(run.plan().memory.bytes_of("running statistics"), bytes);
  // One step did not include every planned shape of a micro-batch.
  const auto without_activations = [](const MemoryPlan& plan) {
    return plan.total() - plan.bytes_of("activations");
  };
  EXPECT_EQ(without_activations(run.engine().memory()), without_activations(run.plan().memory));
}

TEST(BatchNormTraining, CheckpointsKeepThem) {
  const TemporaryDirectory folder;
  SingleRank single;
  const EngineOptions options = speech_options(batch_normed(), "bf16-mixed", 2);
  SpeechRun run(options, *single.mesh);
  run.step(), run.step();
  Progress progress{.step = 2};
  CheckpointStore store(folder.path() + "/checkpoints", single.mesh->world());
  ASSERT_TRUE(store.save({.step = 2, .json = "{}"}, tensors_to_save(run.engine(), progress)).saved);
  const Checkpoint checkpoint = store.find_newest_valid().value();
  EXPECT_NE(
      checkpoint.manifest.find("state/running/encoder.blocks.1.convolution.norm.running_mean"),
      nullptr);
  SpeechRun other(options, *single.mesh);
  EXPECT_NE(other.running(), run.running());
  Progress restored;
  store.load(checkpoint, tensors_to_load(other.engine(), restored));
  EXPECT_EQ(other.running(), run.running());

  // An evaluation, without training state.
  CpuDevice device;
  ModelInstance instance({.model = options.model, .precision = options.precision}, device,
                         *single.mesh, std::size_t{64} << 20);
  store.load(checkpoint, parameters_to_load(instance), "parameters/");
  instance.publish();
  const ModelBatch batch = run.speech().micro_batch(9);
  EXPECT_EQ(instance.loss_sum(batch), run.engine().instance().loss_sum(batch));
}

}  // namespace
}  // namespace choir::test
