// Tests of the whole FastConformer: parameter counts, gradients, and results that must not depend
// on the batch.
#include "test/unit/models/fastconformer/fastconformer_case.hpp"

namespace choir::test {
namespace {

FastConformerConfig sized(std::int64_t width, std::int64_t layers, std::int64_t heads) {
  FastConformerConfig c;
  c.n_embd = width, c.n_layer = layers, c.n_head = heads, c.vocab_size = 128;
  return c;
}

TEST(FastConformer, EncodersHaveThePublishedNumbersOfParameters) {
  const auto count = [](std::int64_t width, std::int64_t layers, std::int64_t heads) {
    ParameterSet parameters;
    const FastConformer model(sized(width, layers, heads), parameters);
    std::int64_t sum = 0;
    for (const Parameter* p : parameters.all())
      if (p->name.starts_with("encoder.")) sum += p->count();
    return sum;
  };
  EXPECT_EQ(count(176, 16, 4), 12600240);
  EXPECT_EQ(count(256, 16, 4), 26128640);
  EXPECT_EQ(count(512, 17, 8), 108762112);
  EXPECT_EQ(count(512, 18, 8), 115074560);
  EXPECT_EQ(count(1024, 24, 8), 607749120);
}

void check_gradients(const FastConformerConfig& config) {
  TinyModel model(config);
  const SpeechBatch speech(config, {3, 8, 5}, {3000, 2100, 0});
  model.loss(speech.batch);
  EXPECT_EQ(model.arena().live(), 0u) << "tensors leaked from the pass";
  std::vector<std::vector<double>> analytic;
  for (const Parameter& p : model.parameters().parameters())
    analytic.emplace_back(p.gradient.as<double>(), p.gradient.as<double>() + p.local_count());
  // Central differences: truncation h^2 |f'''| / 6 and rounding eps |f| / h balance near h = 1e-5.
  constexpr double kStep = 1e-5;
  std::size_t index = 0;
  for (Parameter& p : model.parameters().parameters()) {
    const std::vector<double>& expected = analytic[index++];
    double norm = 0;
    for (const double g : expected) norm = std::max(norm, std::abs(g));
    // Batch normalisation subtracts a constant that is added to every counted frame, so the bias
    // before it has no gradient.
    if (config.conv_norm != ConvNorm::batchnorm || !p.name.ends_with(".depthwise.bias")) {
      EXPECT_GT(norm, 1e-9) << p.name << " has no gradient";
    }
    for (std::int64_t i = 0; i < p.local_count();
         i += std::max<std::int64_t>(1, p.local_count() / 4)) {
      double& w = p.value.as<double>()[i];
      const double kept = w;
      w = kept + kStep;
      const double above = model.loss(speech.batch);
      w = kept - kStep;
      const double below = model.loss(speech.batch);
      w = kept;
      EXPECT_NEAR((above - below) / (2 * kStep), expected[static_cast<std::size_t>(i)],
                  1e-6 * std::max(1.0, norm))
          << p.name << "[" << i << "]";
    }
  }
}

TEST(FastConformer, GradientsAreThoseOfTheLoss) {
  check_gradients(tiny_conformer());
}

TEST(FastConformer, GradientsWithEverythingRandom) {
  FastConformerConfig c = tiny_conformer();
  c.n_layer = 3, c.dropout = 0.2, c.stochastic_depth = 0.5, c.xscaling = false;
  c.augment = {.time_masks = 1, .frequency_masks = 1, .time_width = 4, .frequency_width = 4};
  c.mel.dither = 1e-4;
  check_gradients(c);
}

TEST(FastConformer, GradientsOfTheCausalModelInChunks) {
  FastConformerConfig c = tiny_conformer();
  c.causal = true, c.normalise = false, c.subsampling = 2;
  c.context_style = ContextStyle::chunked, c.left_context = 4, c.right_context = 1;
  check_gradients(c);
}

TEST(FastConformer, GradientsWithBatchNormalisation) {
  FastConformerConfig c = tiny_conformer();
  c.conv_norm = ConvNorm::batchnorm;
  check_gradients(c);
  c.causal = true, c.dropout = 0.2, c.stochastic_depth = 0.5;
  check_gradients(c);
}

/// All gradients, one after another.
std::vector<double> gradients_of(TinyModel& model) {
  std::vector<double> all;
  for (const Parameter& p : model.parameters().parameters())
    for (std::int64_t i = 0; i < p.local_count(); ++i)
      all.push_back(ref::load(p.gradient.data, p.gradient.dtype, i));
  return all;
}

void check_recomputation(ConvNorm conv_norm) {
  for (const char* precision : {"fp64", "bf16-mixed"}) {
    FastConformerConfig c = tiny_conformer();
    c.dropout = 0.1, c.stochastic_depth = 0.3, c.conv_norm = conv_norm;
    const SpeechBatch speech(c, {3, 8}, {3000, 2100});
    TinyModel whole(c, precision);
    const double loss = whole.loss(speech.batch);
    for (const Recompute recompute : {Recompute::selective, Recompute::full}) {
      c.recompute = recompute;
      TinyModel again(c, precision);
      EXPECT_EQ(again.loss(speech.batch), loss) << precision;
      EXPECT_EQ(gradients_of(again), gradients_of(whole)) << precision;
      EXPECT_LT(again.arena().peak_live(), whole.arena().peak_live());
    }
  }
}

TEST(FastConformer, RecomputationChangesNothing) {
  check_recomputation(ConvNorm::layernorm);
  check_recomputation(ConvNorm::batchnorm);
}

TEST(FastConformer, PiecesAreTheWhole) {
  FastConformerConfig c = tiny_conformer();
  c.dropout = 0.1;
  const SpeechBatch speech(c, {3, 8}, {3000, 2100});
  TinyModel whole(c);
  const double loss = whole.loss(speech.batch);
  for (int first = 1; first < 4; ++first)
    for (int second = first + 1; second < 4; ++second) {
      TinyModel cut(c, "fp64",
                    {.pieces = {{0, first}, {first, second - first}, {second, 4 - second}}});
      EXPECT_EQ(cut.loss(speech.batch), loss) << first << " " << second;
      EXPECT_EQ(gradients_of(cut), gradients_of(whole)) << first << " " << second;
    }
}

TEST(FastConformer, PostponedWeightGradientsAreTheSame) {
  for (const ConvNorm conv_norm : {ConvNorm::layernorm, ConvNorm::batchnorm}) {
    FastConformerConfig c = tiny_conformer();
    c.conv_norm = conv_norm;
    const SpeechBatch speech(c, {3, 8}, {3000, 2100});
    TinyModel at_once(c), later(c);
    at_once.loss(speech.batch);
    later.pass().postpone_weight_gradients(true);
    later.loss(speech.batch);
    later.model().weight_gradients(later.pass(), 0);
    EXPECT_EQ(gradients_of(later), gradients_of(at_once));
  }
}

/// Logits of the counted frames of row b.
std::vector<double> logits_of(TinyModel& model, const SpeechBatch& speech, std::int64_t row) {
  const Tensor logits = model.forward(Mode::generate, speech.batch);
  const std::int64_t tokens = model.pass().sequence().tokens, symbols = logits.shape.back();
  const std::int64_t count = model.pass().sequence().lengths[row];
  std::vector<double> values;
  for (std::int64_t i = row * tokens * symbols; i < (row * tokens + count) * symbols; ++i)
    values.push_back(ref::load(logits.data, logits.dtype, i));
  return values;
}

/// Running statistics that differ from those of the start.
void move_statistics(TinyModel& model) {
  for (const RunningStatistics& norm : model.parameters().running_statistics())
    for (std::int64_t i = 0; i < norm.mean.count(); ++i) {
      norm.mean.as<double>()[i] = std::sin(static_cast<double>(i));
      norm.variance.as<double>()[i] = 1.5 + std::cos(static_cast<double>(i));
    }
}

void check_independence(const FastConformerConfig& base) {
  for (const bool causal : {false, true}) {
    FastConformerConfig c = base;
    c.causal = causal;
    TinyModel model(c);
    move_statistics(model);
    const SpeechBatch alone(c, {3}, {2777}), padded(c, {3}, {2777}, 6000),
        third(c, {7, 9, 3, 1}, {4000, 1234, 2777, 0});
    const std::vector<double> expected = logits_of(model, alone, 0);
    for (const auto& [speech, row] : {std::pair{&padded, 0}, std::pair{&third, 2}}) {
      const std::vector<double> values = logits_of(model, *speech, row);
      ASSERT_EQ(values.size(), expected.size());
      for (std::size_t i = 0; i < values.size(); ++i)
        ASSERT_NEAR(values[i], expected[i], 1e-12 * std::max(1.0, std::abs(expected[i]))) << i;
    }
  }
}

TEST(FastConformer, AnUtteranceKnowsNeitherItsPaddingNorItsBatch) {
  FastConformerConfig c = tiny_conformer();
  check_independence(c);
  c.conv_norm = ConvNorm::batchnorm;
  check_independence(c);
}

TEST(FastConformer, EvaluationUsesTheRunningStatistics) {
  FastConformerConfig c = tiny_conformer();
  c.conv_norm = ConvNorm::batchnorm;
  TinyModel model(c);
  const SpeechBatch speech(c, {3, 8}, {3000, 2100});
  const auto loss_of = [&](Mode mode) {
    const Tensor losses = model.forward(mode, speech.batch);
    return losses.as<double>()[0] + losses.as<double>()[1];
  };
  const double before = loss_of(Mode::evaluate);
  move_statistics(model);
  EXPECT_GT(std::abs(loss_of(Mode::evaluate) - before), 1e-3);
  const double trained = model.loss(speech.batch);
  model.parameters().running_statistics()[0].mean.as<double>()[0] += 1;
  EXPECT_EQ(model.loss(speech.batch), trained) << "training knows its own alone";
}

TEST(FastConformer, RandomNumbersBelongToTheUtterance) {
  FastConformerConfig c = tiny_conformer();
  c.dropout = 0.2, c.stochastic_depth = 0.4;
  c.augment = {.time_masks = 2, .frequency_masks = 2, .time_width = 3, .frequency_width = 4};
  TinyModel model(c);
  const auto loss_of = [&](const SpeechBatch& speech, std::int64_t row) {
    const Tensor losses = model.forward(Mode::train, speech.batch);
    const double loss = losses.as<double>()[row];
    Tensor none;
    model.backward(speech.batch);
    return loss;
  };
  const SpeechBatch alone(c, {3}, {2777}), third(c, {7, 9, 3}, {4000, 1234, 2777});
  const double expected = loss_of(alone, 0);
  EXPECT_NEAR(loss_of(third, 2), expected, 1e-12 * std::abs(expected));
  SpeechBatch other = alone;
  other.ids[0] = 4;  // the same audio and text, another draw
  other.batch["sample_ids"].data = other.ids.data();
  EXPECT_GT(std::abs(loss_of(other, 0) - expected), 1e-6);
}

TEST(FastConformer, TheCausalModelSeesNoFutureBeyondItsContext) {
  FastConformerConfig c = tiny_conformer();
  c.causal = true, c.normalise = false, c.subsampling = 2;
  c.context_style = ContextStyle::chunked, c.left_context = 4, c.right_context = 1;
  TinyModel model(c);
  const SpeechBatch speech(c, {3}, {4000});
  SpeechBatch changed = speech;
  const std::int64_t from = 2400;
  for (std::int64_t i = from; i < 4000; ++i) changed.audio[static_cast<std::size_t>(i)] /= 2;
  changed.batch["audio"].data = changed.audio.data();
  const std::vector<double> before = logits_of(model, speech, 0),
                            after = logits_of(model, changed, 0);
  // Frame t of the features reads samples below t hop + window / 2; frame t of the encoder those up
  // to 2 t, and its chunk ends at an odd frame.
  const std::int64_t feature = (from - c.mel.window / 2) / c.mel.hop;  // the last without change
  const std::int64_t frame = feature / 2, chunks = (frame + 1) / 2, symbols = c.vocab_size + 1;
  ASSERT_GT(chunks, 2);
  for (std::int64_t i = 0; i < chunks * 2 * symbols; ++i)
    ASSERT_EQ(before[static_cast<std::size_t>(i)], after[static_cast<std::size_t>(i)]) << i;
  EXPECT_NE(before, after);
}

}  // namespace
}  // namespace choir::test
