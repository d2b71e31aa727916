// Tests that a dialogue frame by frame is equal to the dialogue as a whole.
#include "src/models/duplex/talker.hpp"

#include <gtest/gtest.h>

#include <cmath>

#include "test/unit/models/duplex/duplex_case.hpp"

namespace choir::test {
namespace {

constexpr std::int64_t kFrames = 11;

std::vector<double> numbers(const TensorView& tensor) {
  return {tensor.as<double>(), tensor.as<double>() + tensor.count()};
}

double difference(const std::vector<double>& a, const std::vector<double>& b) {
  if (a.size() != b.size()) return INFINITY;
  double most = 0, largest = 1;
  for (std::size_t i = 0; i < a.size(); ++i) {
    most = std::max(most, std::abs(a[i] - b[i]));
    largest = std::max(largest, std::abs(a[i]));
  }
  return most / largest;
}

/// Fields of the first `frames` frames of a dialogue, without targets.
ModelBatch first_frames(ModelBatch batch, std::int64_t frames) {
  batch.tokens = frames;
  for (const char* name : {"frames", "text", "codes"}) batch[name].shape[0] = frames;
  for (const char* name : {"text_targets", "text_weights", "code_targets"}) batch[name] = {};
  return batch;
}

std::vector<std::vector<double>> streamed(Talking& model, std::size_t piece,
                                          std::int64_t length = kFrames) {
  const DuplexConfig& c = model.config();
  const ModelBatch batch = model.batch({{.id = 3, .frames = length}});
  DuplexStream stream(model.instance());
  std::vector<std::vector<double>> logits;
  std::vector<double> frames;
  std::span<const std::int16_t> audio(static_cast<const std::int16_t*>(batch["audio"].data),
                                      static_cast<std::size_t>(batch["audio"].shape[1]));
  const auto take = [&] {
    while (stream.audio().ready()) {
      const std::vector<double> chunk = numbers(stream.audio().next());
      frames.insert(frames.end(), chunk.begin(), chunk.end());
    }
  };
  while (!audio.empty()) {
    const auto count =
        std::min({audio.size(), piece, static_cast<std::size_t>(stream.audio().room())});
    stream.audio().push(audio.first(count));
    audio = audio.subspan(count);
    take();
  }
  stream.audio().end();
  take();
  EXPECT_EQ(std::ssize(frames), (length + 1) * c.encoder.n_embd);
  for (std::int64_t t = 0; t < length; ++t) {
    const TensorView heard{frames.data() + t * c.encoder.n_embd, DType::f64, {c.encoder.n_embd}};
    const std::int32_t* codes = batch["codes"].as<std::int32_t>() + t * c.codebooks;
    logits.push_back(numbers(stream.rows().step(heard, {batch["text"].as<std::int32_t>() + t, 1},
                                                {codes, static_cast<std::size_t>(c.codebooks)})));
  }
  EXPECT_EQ(stream.rows().seen(), length);
  return logits;
}

/// The logits after frame t of the same dialogue, with all frames up to it at once.
std::vector<double> whole(Talking& model, std::int64_t t, std::int64_t length = kFrames) {
  const ModelBatch batch = model.batch({{.id = 3, .frames = length}});
  return numbers(model.instance().forward(Mode::generate, first_frames(batch, t + 1)));
}

// The encoder runs in chunks, the rest row by row with a cache of keys and values.
TEST(DuplexStream, FrameByFrameIsTheWhole) {
  Talking model(small_duplex());
  const DuplexConfig& c = model.config();
  const auto by_frames = streamed(model, 1000);
  ASSERT_EQ(std::ssize(by_frames.front()), c.lm.vocab_size + c.codebooks * c.code_ids());
  double seen = 0;
  for (std::int64_t t = 0; t < kFrames; ++t) {
    const std::vector<double>& row = by_frames[static_cast<std::size_t>(t)];
    EXPECT_LT(difference(whole(model, t), row), 1e-12) << t;
    if (t > 0) seen = std::max(seen, difference(by_frames[0], row));
  }
  EXPECT_GT(seen, 0.01) << "rows differ";
  EXPECT_EQ(streamed(model, 77), by_frames) << "however the audio comes";
}

/// A model with room for more frames; each frame sees this many earlier ones.
DuplexConfig windowed(std::int64_t block_size, std::int64_t window) {
  DuplexConfig config = small_duplex();
  config.lm.block_size = block_size;
  config.lm.window = window;
  config.complete();
  return config;
}

// There are as many frames as in training, and more: in each layer a frame sees the same number of
// them.
TEST(DuplexStream, EndlessIsAWindowOfTheBlockSize) {
  constexpr std::int64_t kBlock = 24, kMany = 61;
  for (const std::int64_t window : {std::int64_t{0}, std::int64_t{7}}) {
    Talking model(windowed(kBlock, window));
    Talking larger(windowed(kMany, window > 0 ? window : kBlock));
    Talking shorter_sighted(windowed(kMany, (window > 0 ? window : kBlock) - 1));
    const auto by_frames = streamed(model, 1000, kMany);
    for (const std::int64_t t : {5, 23, 24, 25, 47, 48, 49, 60}) {
      const std::vector<double>& row = by_frames[static_cast<std::size_t>(t)];
      EXPECT_LT(difference(whole(larger, t, kMany), row), 1e-12) << t << ", window " << window;
      if (t >= kBlock) {
        EXPECT_GT(difference(whole(shorter_sighted, t, kMany), row), 1e-6) << t;
      }
    }
  }
}

TEST(DuplexStream, LearntPositionsHaveAnEnd) {
  DuplexConfig config = small_duplex();
  config.lm.position = Position::learned;
  Talking model(config);
  const DuplexStream stream(model.instance());
  EXPECT_TRUE(stream.rows().has_room(config.lm.block_size));
  EXPECT_FALSE(stream.rows().has_room(config.lm.block_size + 1));
}

// The logits of a row are the same in training and in generation.
TEST(DuplexStream, LogitsAreThoseThatLossesAreMadeOf) {
  Talking model(small_duplex());
  const DuplexConfig& c = model.config();
  const auto by_frames = streamed(model, 1000);
  const ModelBatch batch = model.batch({{.id = 3, .frames = kFrames}});
  std::fill_n(batch["text_weights"].as<float>(), kFrames, 1.0F);
  const std::vector<double> losses = model.losses(Mode::evaluate, batch);
  const auto loss_of = [](const double* logits, std::int64_t n, std::int32_t target) {
    double sum = 0;
    for (std::int64_t i = 0; i < n; ++i) sum += std::exp(logits[i]);
    return std::log(sum) - logits[target];
  };
  for (std::int64_t t = 0; t < kFrames; ++t) {
    const double* row = by_frames[static_cast<std::size_t>(t)].data();
    EXPECT_NEAR(losses[static_cast<std::size_t>(t)],
                loss_of(row, c.lm.vocab_size, batch["text_targets"].as<std::int32_t>()[t]), 1e-11);
    for (std::int64_t k = 0; k < c.codebooks; ++k) {
      const std::int64_t at = t * c.codebooks + k;
      EXPECT_NEAR(losses[static_cast<std::size_t>(kFrames * c.codebooks + at)],
                  loss_of(row + c.lm.vocab_size + k * c.code_ids(), c.code_ids(),
                          batch["code_targets"].as<std::int32_t>()[at]),
                  1e-11);
    }
  }
}

}  // namespace
}  // namespace choir::test
