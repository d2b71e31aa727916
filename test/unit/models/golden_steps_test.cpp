// Loss and norm of the gradient of one training step of every family, with several micro-batches
// that have different numbers of targets: a wrong denominator is wrong alike in all layouts, and
// only absolute numbers show it. The numbers are of an independent implementation in fp64: NumPy
// 2.4 with gradients by autograd 1.9, every sequence alone and without padding, the log-mel
// features from the definition by numpy.fft, the parameters and inputs by the formulas below.
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <span>
#include <vector>

#include "src/models/codec/codec.hpp"
#include "src/models/duplex/duplex_batch.hpp"
#include "src/models/gpt/chat_data.hpp"
#include "src/models/salm/salm.hpp"
#include "test/unit/models/fastconformer/fastconformer_case.hpp"
#include "test/unit/models/salm/salm_case.hpp"
#include "test/unit/train/engine_case.hpp"

namespace choir::test {
namespace {

/// One step of the model whose parameters are simple_value(), on these micro-batches.
StepResult golden_step(const ModelConfig& model, const std::vector<ModelBatch>& batches,
                       const ByTerm& targets, const std::vector<BatchShape>& shapes) {
  SingleRank single;
  CpuDevice device;
  EngineOptions options = engine_options(tiny_gpt(), "fp64", std::ssize(batches));
  options.model = model;
  options.micro_batch_size = batches.front().samples;
  if (!model.family().fixed_shape()) options.shapes = shapes;
  options.lag = 0;
  const StepPlan plan = plan_step(options, single.mesh->layout(), 0, 1, false, &device);
  Engine engine(options, device, *single.mesh, plan.arena_bytes);
  engine.instance().initialise(1);
  for (Parameter& p : engine.instance().parameters().parameters())
    for (std::int64_t i = 0; i < p.count(); ++i) p.master.as<double>()[i] = simple_value(p, i);
  engine.instance().publish();
  PhaseClock clock;
  engine.step(
      0, [&](std::int64_t j) { return batches[static_cast<std::size_t>(j)]; }, targets, clock);
  return engine.finish(clock);
}

/// Both implementations round: some hundred sums of some hundred terms.
void expect_golden(const StepResult& result, double loss, double norm) {
  EXPECT_NEAR(result.loss, loss, 1e-11 * loss);
  EXPECT_NEAR(result.grad_norm, norm, 1e-10 * norm);
}

std::int32_t below(std::int64_t number, std::int64_t end) {
  return static_cast<std::int32_t>(number % end);
}

// Four conversations in two rows; answers begin at the third token, and some tokens of them do not
// count.
TEST(GoldenSteps, Chat) {
  GptConfig c = tiny_llama();
  c.packed = true;
  const std::vector<std::int64_t> lengths{5, 4, 6, 3};
  std::vector<std::vector<std::int32_t>> ids;
  std::vector<std::vector<std::uint8_t>> counted;
  double announced = 0;
  for (std::int64_t d = 0; d < 4; ++d) {
    ids.emplace_back(), counted.emplace_back();
    for (std::int64_t i = 0; i < lengths[static_cast<std::size_t>(d)]; ++i) {
      ids.back().push_back(below(3 * d * d + 5 * i + 2, 19));
      counted.back().push_back(i >= 2 && (i + d) % 4 != 3);
      announced += counted.back().back();
    }
  }
  std::vector<PackedTokens> rows;
  std::vector<std::vector<std::int32_t>> begins;
  std::vector<ModelBatch> batches;
  for (std::size_t row = 0; row < 2; ++row) {
    const std::vector<std::span<const std::int32_t>> of_row(ids.begin() + 2 * row,
                                                            ids.begin() + 2 * row + 2);
    const std::vector<std::span<const std::uint8_t>> flags(counted.begin() + 2 * row,
                                                           counted.begin() + 2 * row + 2);
    rows.push_back(packed_tokens(of_row, flags, c.block_size));
    begins.emplace_back(static_cast<std::size_t>(c.block_size));
    for (std::size_t at = 0; at < begins.back().size(); ++at)
      for (const std::int32_t begin : rows.back().begins)
        if (begin <= static_cast<std::int32_t>(at)) begins.back()[at] = begin;
  }
  for (std::size_t row = 0; row < 2; ++row) {
    const auto view = [&](std::vector<std::int32_t>& x) {
      return TensorView{x.data(), DType::i32, {c.block_size}};
    };
    batches.push_back(token_batch(1, view(rows[row].inputs), view(rows[row].targets),
                                  static_cast<std::int64_t>(row)));
    add_documents(batches.back(), view(begins[row]), view(rows[row].positions));
  }
  EXPECT_EQ(announced, 7);
  expect_golden(golden_step(c, batches, announced, {}), 3.704948436686574, 62.21771061178915);
}

TEST(GoldenSteps, Recogniser) {
  const FastConformerConfig c = tiny_conformer();
  SpeechBatch two(c, {3, 8}, {3000, 2100}), one(c, {1}, {2500});
  two.batch.scale = one.batch.scale = 1;
  const std::vector<BatchShape> shapes{{.samples = 2, .audio_samples = 3000, .labels = 3}};
  expect_golden(golden_step(c, {two.batch, one.batch}, 6, shapes), 4.994794335877367,
                12.437095135465);
}

// A micro-batch of the audio of SpeechBatch.
std::unique_ptr<HostBatch> sounds(const ModelConfig& config, const BatchShape& shape,
                                  const FastConformerConfig& encoder, const SpeechBatch& speech) {
  auto host = std::make_unique<HostBatch>(config, shape);
  const auto copy = [&](const char* name, const TensorView& from) {
    std::memcpy(host->batch[name].data, from.data, from.bytes());
  };
  copy("audio", speech.batch["audio"]);
  copy("audio_lengths", speech.batch["audio_lengths"]);
  if (config.family().name() == "codec") return host;
  copy("frame_lengths", speech.batch["frame_lengths"]);
  copy("sample_ids", speech.batch["sample_ids"]);
  EXPECT_EQ(host->batch["frame_lengths"].shape[0], encoder.stages() + 1);
  return host;
}

TEST(GoldenSteps, Codec) {
  CodecConfig c{.encoder_width = 12, .decoder_width = 10, .codebooks = 2, .levels = "5,3"};
  c.mel.mels = 12;
  c.complete();
  const FastConformerConfig encoder = tiny_conformer();
  const SpeechBatch two(encoder, {3, 8}, {5000, 2100}), one(encoder, {1}, {3900});
  const BatchShape large{.samples = 2, .audio_samples = 5000};
  const auto first = sounds(c, large, encoder, two);
  const auto second = sounds(c, {.samples = 1, .audio_samples = 3900}, encoder, one);
  for (const auto* host : {&first, &second}) set_frame_lengths(c, (*host)->batch);
  const double frames = 4 + 2 + 4;  // of 1280 samples each
  expect_golden(golden_step(c, {first->batch, second->batch}, frames, {large}), 3.916660294110056,
                0.2986640029355821);
}

// Two tokens, a clip, four tokens; the second conversation masks its last one.
TEST(GoldenSteps, Salm) {
  const SalmConfig c = tiny_salm();
  const std::vector<std::int64_t> ids{3, 8}, samples{1500, 2100};
  std::vector<std::unique_ptr<SpeechBatch>> speech;
  std::vector<std::unique_ptr<HostBatch>> hosts;
  std::vector<ModelBatch> batches;
  for (std::size_t d = 0; d < 2; ++d) {
    const auto number = static_cast<std::int64_t>(d);
    speech.push_back(
        std::make_unique<SpeechBatch>(c.encoder, std::vector{ids[d]}, std::vector{samples[d]}));
    const std::int64_t clip = c.encoder.frames(samples[d]), tokens = 2 + clip + 4;
    hosts.push_back(
        sounds(c, {.samples = 1, .tokens = tokens, .audio_samples = samples[d], .clips = 1},
               c.encoder, *speech.back()));
    ModelBatch& batch = hosts.back()->batch;
    auto* const index = batch["index"].as<std::int32_t>();
    auto* const targets = batch["targets"].as<std::int32_t>();
    std::fill_n(targets, tokens, -1);
    for (std::int64_t i = 0; i < 2; ++i) index[i] = below(7 * number + 3 * i + 1, 19);
    for (std::int64_t i = 0; i < clip; ++i) index[2 + i] = static_cast<std::int32_t>(-1 - i);
    for (std::int64_t i = 0; i < 4; ++i) {
      index[2 + clip + i] = below(5 * number + 4 * i + 2, 19);
      if (i < 3 || d == 0) targets[2 + clip + i - 1] = index[2 + clip + i];
    }
    batches.push_back(batch);
  }
  const BatchShape large{.samples = 1, .tokens = 64, .audio_samples = 2100, .clips = 1};
  expect_golden(golden_step(c, batches, 7, {large}), 2.652355640137244, 9.629836791681639);
}

TEST(GoldenSteps, Duplex) {
  DuplexConfig c;
  c.encoder = tiny_conformer();
  c.lm = tiny_llama();
  c.lm.block_size = 64;
  c.codebooks = 2, c.codes = 5;
  c.user_weight = 0.8;
  c.complete();
  const std::int64_t books = c.codebooks, code_ids = c.code_ids();
  const std::vector<std::int64_t> ids{3, 8}, samples{1500, 2100};
  std::vector<std::unique_ptr<SpeechBatch>> speech;
  std::vector<std::unique_ptr<HostBatch>> hosts;
  std::vector<ModelBatch> batches;
  ByTerm announced(2, 0);
  for (std::size_t row = 0; row < 2; ++row) {
    const auto d = static_cast<std::int64_t>(row);
    speech.push_back(
        std::make_unique<SpeechBatch>(c.encoder, std::vector{ids[row]}, std::vector{samples[row]}));
    const std::int64_t frames = c.encoder.frames(samples[row]);
    hosts.push_back(sounds(c, {.samples = 1, .tokens = frames, .audio_samples = samples[row]},
                           c.encoder, *speech.back()));
    ModelBatch& batch = hosts.back()->batch;
    const auto integers = [&](const char* name) { return batch[name].as<std::int32_t>(); };
    for (std::int64_t t = 0; t < frames; ++t) {
      const bool text = (t + d) % 4 != 3;
      integers("text")[t] = below(3 * d + 5 * t + 1, 19);
      integers("text_targets")[t] = text ? below(4 * d + 7 * t + 3, 19) : -1;
      batch["text_weights"].as<float>()[t] =
          text ? 0.25F * static_cast<float>((t + d) % 3 + 1) : 0.0F;
      announced[0] += text;
      for (std::int64_t k = 0; k < books; ++k) {
        const bool code = (t + k) % 5 != 4;
        integers("codes")[t * books + k] = below(d + 3 * t + k, code_ids);
        integers("code_targets")[t * books + k] = code ? below(2 * d + t + 5 * k, code_ids) : -1;
        announced[1] += code;
      }
    }
    hear_frames(c, batch);
    batches.push_back(batch);
  }
  const BatchShape large{.samples = 1, .tokens = 12, .audio_samples = 2100};
  expect_golden(golden_step(c, batches, announced, {large}), 7.616695966048971, 8.789066263289323);
}

}  // namespace
}  // namespace choir::test
