// Tests of a language model with speech input, in fp64: gradients against finite differences, and
// against its parts alone.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "choir/comm/mesh/mesh.hpp"
#include "choir/core/philox.hpp"
#include "choir/deck/pipeline_options.hpp"
#include "choir/run/freezing.hpp"
#include "choir/run/model_instance.hpp"
#include "src/data/chat/splice.hpp"
#include "src/device/cpu_device.hpp"
#include "src/models/gpt/gpt_config.hpp"
#include "src/models/salm/salm_config.hpp"

namespace choir {
namespace {

constexpr std::int32_t kClip = -1;  // stands for one clip among ids

SalmConfig small_salm() {
  SalmConfig config;
  config.encoder = {.n_layer = 1,
                    .n_embd = 8,
                    .n_head = 2,
                    .conv_kernel = 3,
                    .subsampling = 2,
                    .subsampling_channels = 3,
                    .dropout = 0.1};
  config.encoder.mel.mels = 10;
  config.encoder.augment = {};
  config.encoder.augment.frequency_masks = config.encoder.augment.time_masks = 0;
  config.lm = {.vocab_size = 11,
               .block_size = 24,
               .n_layer = 1,
               .n_head = 2,
               .n_kv_head = 2,
               .n_embd = 12,
               .ffn_width = 16,
               .dropout = 0.1};
  config.complete();
  return config;
}

/// With a block behind the encoder, and rows of two frames, so that clips end within a row.
SalmConfig adapted_salm() {
  SalmConfig config = small_salm();
  config.adapter = {.layers = 1, .stack = 2};
  config.complete();
  return config;
}

struct Talk {
  std::vector<std::int32_t> ids;
  std::vector<std::int64_t> clip_samples;
  std::int64_t id = 0;
};

/// True if the id at this index of a conversation is part of an answer.
bool counts(std::size_t at, const Talk& talk) {
  return at + 3 >= talk.ids.size() && talk.ids[at] != kClip;
}

class Hearing {
 public:
  explicit Hearing(const ModelConfig& config)
      : config_(config),
        mesh_(Mesh::planned(Layout(), 0, 1)),
        instance_({config, precision_of("fp64"), 7, true}, device_, *mesh_, std::size_t{64} << 20) {
    instance_.initialise(7);
    // Parameters differ from the symmetric start; those of a part depend on the name that they have
    // in that part alone.
    for (Parameter& p : instance_.parameters().parameters()) {
      const std::string name = p.name.starts_with("lm.") ? p.name.substr(3) : p.name;
      for (std::int64_t i = 0; i < p.local_count(); ++i) {
        const double mean = name.ends_with("norm.weight") ? 1 : 0;
        p.master.as<double>()[i] =
            mean + 0.3 * normal_at(philox_key(3, name), static_cast<std::uint64_t>(i));
      }
    }
    instance_.publish();
  }

  ParameterSet& parameters() { return instance_.parameters(); }
  ModelInstance& instance() { return instance_; }

  /// Rows of at least `tokens`, clips of at least `samples` and `clips` of them.
  ModelBatch batch(const std::vector<Talk>& talks, std::int64_t tokens = 0,
                   std::int64_t samples = 0, std::int64_t clips = 1) {
    const FastConformerConfig& encoder = config_.as<SalmConfig>().encoder;
    const SpeechFrames clip_rows = config_.as<SalmConfig>().clip_rows();
    std::vector<SpliceRow> rows;
    counted_.clear();
    counted_.reserve(talks.size());
    std::int64_t heard = 0;
    for (const Talk& talk : talks) {
      auto& flags = counted_.emplace_back();
      for (std::size_t i = 0; i < talk.ids.size(); ++i) flags.push_back(counts(i, talk) ? 1 : 0);
      rows.push_back({talk.ids, flags, talk.clip_samples});
      tokens = std::max(tokens, splice_rows(rows.back(), clip_rows));
      heard += std::ssize(talk.clip_samples);
      for (const std::int64_t n : talk.clip_samples) samples = std::max(samples, n);
    }
    samples = std::max(samples, encoder.mel.hop * encoder.subsampling);
    const BatchShape shape{.samples = std::ssize(talks),
                           .tokens = tokens,
                           .audio_samples = samples,
                           .clips = std::max(clips, heard)};
    memory_ = std::make_unique<HostBatch>(config_, shape);
    memory_->clear();
    ModelBatch& batch = memory_->batch;
    const Splice splice = make_splice(rows, {.frames = clip_rows,
                                             .placeholder = kClip,
                                             .padded_rows = clip_rows.rows(samples),
                                             .row_tokens = tokens});
    std::ranges::copy(splice.splice, batch["index"].as<std::int32_t>());
    std::ranges::copy(splice.targets, batch["targets"].as<std::int32_t>());
    std::int64_t clip = 0;
    for (std::size_t row = 0; row < talks.size(); ++row) {
      batch["conversation_ids"].as<std::int64_t>()[row] = talks[row].id;
      for (std::size_t k = 0; k < talks[row].clip_samples.size(); ++k)
        set_clip(batch, clip++, 10 * talks[row].id + static_cast<std::int64_t>(k),
                 talks[row].clip_samples[k]);
    }
    batch.scale = 1.0 / 7;
    return batch;
  }

  /// Losses of all positions.
  std::vector<double> losses(Mode mode, const ModelBatch& batch) {
    Pass& pass = instance_.pass();
    instance_.model().begin(pass, mode, batch);
    const Tensor losses = instance_.model().forward(pass, 0, Tensor(), batch);
    std::vector<double> list(losses.as<double>(), losses.as<double>() + losses.count());
    if (mode != Mode::train) return list;
    for (const Bucket& bucket : parameters().buckets())
      instance_.storage().begin_gradients(instance_.stream(), bucket);
    instance_.model().backward(pass, 0, Tensor(), batch);
    return list;
  }

 private:
  void set_clip(ModelBatch& batch, std::int64_t clip, std::int64_t id, std::int64_t samples) {
    const FastConformerConfig& encoder = config_.as<SalmConfig>().encoder;
    const std::int64_t clips = batch["audio"].shape[0], length = batch["audio"].shape[1];
    auto* audio = static_cast<std::int16_t*>(batch["audio"].data) + clip * length;
    for (std::int64_t i = 0; i < samples; ++i)
      audio[i] = static_cast<std::int16_t>(
          3000 * normal_at(philox_key(5, "audio"), static_cast<std::uint64_t>(id * 100'000 + i)));
    batch["audio_lengths"].as<std::int32_t>()[clip] = static_cast<std::int32_t>(samples);
    for (int stage = 0; stage <= encoder.stages(); ++stage)
      batch["frame_lengths"].as<std::int32_t>()[stage * clips + clip] =
          static_cast<std::int32_t>(encoder.lengths_after(stage, samples));
    batch["sample_ids"].as<std::int64_t>()[clip] = id;
  }
  ModelConfig config_;
  CpuDevice device_;
  std::unique_ptr<Mesh> mesh_;
  ModelInstance instance_;
  std::vector<std::vector<std::uint8_t>> counted_;
  std::unique_ptr<HostBatch> memory_;
};

double sum_of(const std::vector<double>& list) {
  double sum = 0;
  for (const double x : list) sum += x;
  return sum;
}

std::vector<Talk> talks() {
  return {{.ids = {1, 5, kClip, 6, 7, 2}, .clip_samples = {1500}, .id = 3},
          {.ids = {1, 8, 2}, .clip_samples = {}, .id = 5},
          {.ids = {4, kClip, 9, kClip, 10, 2}, .clip_samples = {700, 1300}, .id = 8}};
}

/// Compares gradients of the parameters whose names begin with one of these; "" begins all.
void expect_finite_differences(const SalmConfig& config, const std::vector<std::string>& begins) {
  Hearing model(config);
  const ModelBatch batch = model.batch(talks());
  const double scale = batch.scale;
  model.losses(Mode::train, batch);
  std::vector<std::pair<Parameter*, std::vector<double>>> gradients;
  for (Parameter& p : model.parameters().parameters())
    gradients.push_back({&p, {p.gradient.as<double>(), p.gradient.as<double>() + p.local_count()}});
  for (const auto& [p, gradient] : gradients) {
    if (std::ranges::none_of(begins, [&p = p](const auto& b) { return p->name.starts_with(b); }))
      continue;
    double largest = 0;
    for (const double g : gradient) largest = std::max(largest, std::abs(g));
    for (std::int64_t i = 0; i < p->local_count(); i += 1 + p->local_count() / 3) {
      double& weight = p->master.as<double>()[i];
      const double was = weight, exact = gradient[static_cast<std::size_t>(i)];
      // Truncation h^2 |f'''| / 6 and rounding eps |f| / h balance near 1e-5; if a kink of the
      // subsampling is that close, a smaller step stays on one side of it.
      double error = std::numeric_limits<double>::infinity();
      for (const double step : {1e-5, 3e-7}) {
        weight = was + step;
        const double above = sum_of(model.losses(Mode::train, batch));
        weight = was - step;
        const double below = sum_of(model.losses(Mode::train, batch));
        weight = was;
        error = std::min(error, std::abs(exact - scale * (above - below) / (2 * step)));
      }
      EXPECT_LT(error, 1e-7 * std::max(1.0, largest)) << p->name << " " << i;
    }
  }
}

TEST(Salm, GradientsAreThoseOfFiniteDifferences) {
  expect_finite_differences(small_salm(), {""});
}

TEST(Salm, GradientsThroughAnAdapterAreThoseOfFiniteDifferences) {
  expect_finite_differences(adapted_salm(), {"encoder.subsampling", "adapter.", "projector."});
}

TEST(Salm, EveryParameterOfThePartsIsReached) {
  Hearing model(adapted_salm());
  model.losses(Mode::train, model.batch(talks()));
  for (Parameter& p : model.parameters().parameters()) {
    double largest = 0;
    for (std::int64_t i = 0; i < p.local_count(); ++i)
      largest = std::max(largest, std::abs(p.gradient.as<double>()[i]));
    EXPECT_GT(largest, 0) << p.name;
  }
}

TEST(Salm, WithoutClipsItIsTheLanguageModelBitByBit) {
  SalmConfig config = small_salm();
  config.lm.dropout = 0;  // its random streams have the names of modules
  Hearing hears(config), reads(config.lm);
  const std::vector<Talk> texts{{.ids = {1, 8, 2, 9, 4}, .clip_samples = {}, .id = 0},
                                {.ids = {3, 7, 7, 5, 6}, .clip_samples = {}, .id = 1}};
  const ModelBatch batch = hears.batch(texts);
  ModelBatch tokens = token_batch(2, batch["index"], batch["targets"]);
  tokens.scale = batch.scale;
  EXPECT_EQ(hears.losses(Mode::train, batch), reads.losses(Mode::train, tokens));
  for (const Parameter& p : reads.parameters().parameters()) {
    const auto& others = hears.parameters().parameters();
    const auto same = std::ranges::find(others, "lm." + p.name, &Parameter::name);
    ASSERT_NE(same, others.end()) << p.name;
    for (std::int64_t i = 0; i < p.local_count(); ++i)
      ASSERT_EQ(p.gradient.as<double>()[i], same->gradient.as<double>()[i]) << p.name << " " << i;
  }
}

/// Alone, among others, in another order, with more padding: the results do not change.
void expect_no_company(const SalmConfig& config) {
  Hearing model(config);
  const std::vector<Talk> all = talks();
  const auto of_row = [&](const std::vector<Talk>& rows, std::size_t row, std::int64_t tokens,
                          std::int64_t samples, std::int64_t clips) {
    const ModelBatch batch = model.batch(rows, tokens, samples, clips);
    const std::vector<double> losses = model.losses(Mode::evaluate, batch);
    const auto first = losses.begin() + static_cast<std::ptrdiff_t>(row) * batch.tokens;
    return std::vector<double>(first, first + batch.tokens);
  };
  for (std::size_t row = 0; row < all.size(); ++row) {
    const std::vector<double> alone = of_row({all[row]}, 0, 0, 0, 1);
    const std::vector<std::vector<double>> others{
        of_row(all, row, 0, 0, 1), of_row({all[2], all[1], all[0]}, 2 - row, 0, 0, 1),
        of_row({all[row]}, 0, 23, 4000, 5)};
    for (const std::vector<double>& in_company : others)
      for (std::size_t i = 0; i < in_company.size(); ++i)
        EXPECT_NEAR(in_company[i], i < alone.size() ? alone[i] : 0, 1e-12) << row << " " << i;
  }
  EXPECT_GT(sum_of(of_row(all, 0, 0, 0, 1)), 1);  // there are targets
}

TEST(Salm, AConversationDoesNotDependOnItsCompany) {
  expect_no_company(small_salm());
}

TEST(Salm, AConversationDoesNotDependOnItsCompanyBehindAnAdapter) {
  expect_no_company(adapted_salm());
}

// A clip of 5 frames takes 3 rows of 2.
TEST(Salm, AClipHasTheRowsOfItsFrames) {
  const SalmConfig config = adapted_salm();
  const std::int64_t samples = 5 * config.encoder.mel.hop * config.encoder.subsampling;
  ASSERT_EQ(config.encoder.frames(samples), 5);
  EXPECT_EQ(config.clip_rows().rows(samples), 3);
  EXPECT_EQ(config.clip_rows().rows(0), 0);
  const std::vector<std::int32_t> ids{1, kClip, 2};
  const std::vector<std::uint8_t> counted{0, 0, 1};
  const std::vector<std::int64_t> clips{samples};
  const SpliceRow row{ids, counted, clips};
  EXPECT_EQ(splice_rows(row, config.clip_rows()), 4);
  const Splice splice = make_splice(
      {&row, 1}, {.frames = config.clip_rows(), .placeholder = kClip, .padded_rows = 7});
  EXPECT_EQ(splice.splice, (std::vector<std::int32_t>{1, -1, -2, -3}));
  EXPECT_EQ(splice.targets, (std::vector<std::int32_t>{-1, -1, -1, 2}));
}

// A frozen encoder costs a third of a trained one, so a stage gets more of it.
TEST(Salm, StagesAreCutByWhatTheyTrain) {
  SalmConfig config = small_salm();
  config.encoder.n_layer = config.lm.n_layer = 8;
  config.complete();
  const Freezing freezing{.freeze = {"encoder.*"}, .unfreeze = {}};
  EXPECT_EQ(units_without_backward({}, config), 0);
  EXPECT_EQ(units_without_backward(freezing, config), config.junction());
  const auto units_of_first = [&](int forward_only) {
    return cut_of(config, {.forward_only = forward_only}, 2, 0, false).pieces.front().count;
  };
  EXPECT_LT(units_of_first(0), units_of_first(config.junction()));
  EXPECT_EQ(stage_of_unit(config, {}, 2, config.junction()), 1);
}

// Five clips for two ranks of the context axis and three of the tensor axis: the last rank has
// none.
TEST(SalmBatch, TensorRanksShareTheClipsOfAContextRank) {
  HostBatch host(small_salm(), {.samples = 2, .tokens = 3, .audio_samples = 320, .clips = 5});
  for (std::int64_t clip = 0; clip < 5; ++clip) {
    host.batch["sample_ids"].as<std::int64_t>()[clip] = 10 + clip;
    for (std::int32_t stage = 0; stage < 2; ++stage)
      host.batch["frame_lengths"].as<std::int32_t>()[stage * 5 + clip] =
          static_cast<std::int32_t>(10 * stage + clip);
  }
  const auto mesh = Mesh::planned(Layout(1, 2, 1, 1), 1, 1);  // the second context rank
  const auto share = [&](const char* name, int rank, auto none) {
    const auto field = std::ranges::find(host.batch.fields(), name, &BatchField::name);
    const BatchRanks ranks{{&mesh->along(Axis::context)}, rank, 3};
    EXPECT_TRUE(ranks.share(*field));
    std::vector<decltype(none)> part(
        static_cast<std::size_t>(share_shape(host.batch, *field, ranks).count()), none);
    copy_share(host.batch, *field, ranks, part.data());
    return part;
  };
  EXPECT_EQ(share("sample_ids", 1, std::int64_t{-1}), (std::vector<std::int64_t>{14}));
  EXPECT_EQ(share("sample_ids", 2, std::int64_t{-1}), (std::vector<std::int64_t>{0}));
  EXPECT_EQ(share("frame_lengths", 0, std::int32_t{-1}), (std::vector<std::int32_t>{3, 13}));
  EXPECT_EQ(share("index", 0, std::int32_t{-1}).size(), 4u)
      << "rows of all three, of two positions";
}

// A part that only one tensor rank encodes is whole on each rank, and its gradient is a sum.
TEST(SalmParameters, OfTheEncoderAreWholeWhereTensorRanksShareClips) {
  SalmConfig config = adapted_salm();
  config.encoder_share = EncoderShare::clips;
  ParameterSet parameters({.rank = 1, .ranks = 2, .sequence = true});
  const auto model = family_of(config).make(config, parameters, {});
  for (const Parameter* p : parameters.all()) {
    const bool of_lm = p->name.starts_with("lm.");
    EXPECT_TRUE(of_lm || p->local_count() == p->count()) << p->name;
    EXPECT_TRUE(of_lm || partial_runs(*p).size() == 1) << p->name;
    EXPECT_TRUE(of_lm || owned_ranges(*p, 1).empty()) << p->name << " counts once";
  }
}

}  // namespace
}  // namespace choir
