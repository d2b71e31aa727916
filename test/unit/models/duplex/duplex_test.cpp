// Tests of a duplex model in fp64: gradients against finite differences, dialogues among others and
// alone, and losses by the numbers of a worked example.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "choir/comm/mesh/mesh.hpp"
#include "src/models/duplex/duplex.hpp"
#include "src/nn/axes/context_axis.hpp"
#include "test/unit/models/duplex/duplex_case.hpp"

namespace choir::test {
namespace {

std::vector<Dialogue> dialogues() {
  return {{.id = 3, .frames = 7}, {.id = 5, .frames = 4}, {.id = 8, .frames = 6}};
}

TEST(Duplex, GradientsAreThoseOfFiniteDifferences) {
  Talking model(small_duplex());
  const ModelBatch batch = model.batch(dialogues());
  const double scale = batch.scale;
  model.losses(Mode::train, batch);
  std::vector<std::pair<Parameter*, std::vector<double>>> gradients;
  for (Parameter& p : model.parameters())
    gradients.push_back({&p, {p.gradient.as<double>(), p.gradient.as<double>() + p.local_count()}});
  for (const auto& [p, gradient] : gradients) {
    double largest = 0;
    for (const double g : gradient) largest = std::max(largest, std::abs(g));
    EXPECT_GT(largest, 0) << p->name;
    for (std::int64_t i = 0; i < p->local_count(); i += 1 + p->local_count() / 3) {
      double& weight = p->master.as<double>()[i];
      const double was = weight, exact = gradient[static_cast<std::size_t>(i)];
      // Truncation h^2 |f'''| / 6 and rounding eps |f| / h balance near 1e-5; if a kink of the
      // subsampling is that close, a smaller step stays on one side of it.
      double error = std::numeric_limits<double>::infinity();
      for (const double step : {1e-5, 3e-7}) {
        weight = was + step;
        const double above = sum_of_losses(model.losses(Mode::train, batch));
        weight = was - step;
        const double below = sum_of_losses(model.losses(Mode::train, batch));
        weight = was;
        error = std::min(error, std::abs(exact - scale * (above - below) / (2 * step)));
      }
      EXPECT_LT(error, 1e-7 * std::max(1.0, largest)) << p->name << " " << i;
    }
  }
}

// Alone, among others, in another order, with more padding, poisoned: nothing changes.
TEST(Duplex, ADialogueDoesNotDependOnItsCompany) {
  Talking model(small_duplex());
  const std::vector<Dialogue> all = dialogues();
  const auto of_row = [&](const std::vector<Dialogue>& rows, std::size_t row, std::int64_t padded,
                          bool poison) {
    const ModelBatch batch = model.batch(rows, padded, poison);
    const std::vector<double> losses = model.losses(Mode::train, batch);
    double counted = 0;
    for (std::size_t i = 0; i < rows.size(); ++i)
      counted += sum_of_losses(
          model.losses_of(losses, batch, static_cast<std::int64_t>(i), rows[i].frames));
    EXPECT_NEAR(sum_of_losses(losses), counted, 1e-12 * counted) << "the rest is zeros";
    return model.losses_of(losses, batch, static_cast<std::int64_t>(row), rows[row].frames);
  };
  for (std::size_t row = 0; row < all.size(); ++row) {
    const std::vector<double> alone = of_row({all[row]}, 0, 0, false);
    for (const std::vector<double>& in_company :
         {of_row(all, row, 0, false), of_row({all[2], all[1], all[0]}, 2 - row, 0, true),
          of_row({all[row]}, 0, 23, true)})
      for (std::size_t i = 0; i < alone.size(); ++i)
        EXPECT_NEAR(in_company[i], alone[i], 1e-12 * std::max(1.0, alone[i])) << row << " " << i;
  }
}

TEST(Duplex, GradientsDoNotSeePadding) {
  Talking model(small_duplex());
  const auto gradients = [&](std::int64_t padded, bool poison) {
    model.losses(Mode::train, model.batch(dialogues(), padded, poison));
    std::vector<double> list;
    for (const Parameter& p : model.parameters())
      list.insert(list.end(), p.gradient.as<double>(), p.gradient.as<double>() + p.local_count());
    return list;
  };
  const std::vector<double> tight = gradients(0, false), wide = gradients(19, true);
  double largest = 0;
  for (const double g : tight) largest = std::max(largest, std::abs(g));
  for (std::size_t i = 0; i < tight.size(); ++i)
    ASSERT_NEAR(wide[i], tight[i], 1e-12 * std::max(1.0, largest)) << i;
}

TEST(Duplex, WithoutWeightTheUserIsNotHeard) {
  DuplexConfig config = small_duplex();
  const auto change_of_losses = [](Talking& model) {
    const ModelBatch batch = model.batch(dialogues());
    const std::vector<double> before = model.losses(Mode::train, batch);
    auto* audio = static_cast<std::int16_t*>(batch["audio"].data);
    for (std::int64_t i = 0; i < 300; ++i) audio[i] = static_cast<std::int16_t>(5000 - audio[i]);
    const std::vector<double> after = model.losses(Mode::train, batch);
    double most = 0;
    for (std::size_t i = 0; i < before.size(); ++i)
      most = std::max(most, std::abs(after[i] - before[i]));
    return most;
  };
  Talking hears(config);
  EXPECT_GT(change_of_losses(hears), 1e-6);
  config.user_weight = 0;
  Talking deaf(config);
  EXPECT_EQ(change_of_losses(deaf), 0);
  for (const Parameter& p : deaf.parameters()) {
    if (!p.name.starts_with("encoder.")) continue;
    for (std::int64_t i = 0; i < p.local_count(); ++i)
      ASSERT_EQ(p.gradient.as<double>()[i], 0) << p.name;
  }
}

// A row reads the sound up to its frame, and nothing later; the encoder also reads the later frames
// of its own chunk.
TEST(Duplex, NobodyHearsTheFuture) {
  Talking model(small_duplex());
  const ModelBatch batch = model.batch({{.id = 3, .frames = 9}});
  const std::vector<double> before = model.losses(Mode::train, batch);
  const std::int64_t books = model.config().codebooks, from = 6;
  batch["text"].as<std::int32_t>()[from] ^= 1;
  batch["codes"].as<std::int32_t>()[from * books] ^= 1;
  auto* audio = static_cast<std::int16_t*>(batch["audio"].data);
  const ops::MelOptions& mel = model.config().encoder.mel;
  for (std::int64_t i = from * model.config().encoder.speech_frames().multiple() + mel.fft / 2 + 1;
       i < batch["audio"].shape[1]; ++i)
    audio[i] = 0;
  const std::vector<double> after = model.losses(Mode::train, batch);
  const auto half = before.size() / 2;
  for (std::size_t t = 0; t < static_cast<std::size_t>(from); ++t) {
    EXPECT_EQ(after[t], before[t]) << t;
    EXPECT_EQ(after[half + 2 * t], before[half + 2 * t]) << t;
  }
  EXPECT_NE(after[half + 2 * from], before[half + 2 * from]);
}

// The worked example: two turns in 20 frames, pad 0, bos 1, eos 2; for uniform logits the loss of
// each target is ln 32.
TEST(Duplex, LossesOfTheWorkedExample) {
  const std::vector<std::int32_t> text{0, 0, 0, 0, 0, 1,  21, 22, 0, 2,
                                       0, 0, 0, 0, 1, 23, 24, 2,  0, 0};
  DuplexConfig config = small_duplex();
  config.codes = 1000;
  Talking model(config);
  for (Parameter& p : model.parameters())
    if (p.name == "lm.embedding.tokens.weight" || p.name.starts_with("code_head"))
      std::fill_n(p.master.as<double>(), p.local_count(), 0.0);
  const ModelBatch batch = model.batch({{.id = 1, .frames = 19}});
  auto* targets = batch["text_targets"].as<std::int32_t>();
  auto* weights = batch["text_weights"].as<float>();
  for (std::size_t t = 0; t < 19; ++t) {
    batch["text"].as<std::int32_t>()[t] = text[t];
    targets[t] = text[t + 1];
    for (std::int64_t k = 0; k < 2; ++k) {
      const auto code = [&](std::size_t frame) {
        return text[frame] == 1   ? config.bos_code()
               : text[frame] == 2 ? config.eos_code()
                                  : static_cast<std::int64_t>(10 * frame) + k;
      };
      const auto at = 2 * t + static_cast<std::size_t>(k);
      batch["codes"].as<std::int32_t>()[at] =
          static_cast<std::int32_t>(t == 0 ? config.delay_code() : code(t - 1));
      batch["code_targets"].as<std::int32_t>()[at] = static_cast<std::int32_t>(code(t));
    }
  }
  for (const auto& [pad, sum] : {std::pair{1.0, 65.848982}, {0.3, 39.162816}}) {
    weigh_text({.pad = pad}, {.pad = 0, .bos = 1, .eos = 2}, 19, {targets, 19}, {weights, 19});
    const ByTerm sums = model.instance().loss_sums(batch);
    EXPECT_NEAR(sums[0], sum, 1e-6);
    EXPECT_NEAR(sums[1], 2 * 19 * std::log(1003.0), 1e-9);
  }
}

TEST(Duplex, CodebooksAreSharedAmongRanks) {
  EXPECT_EQ(codebook_share(8, 1, 4).first, 2);
  EXPECT_EQ(codebook_share(8, 1, 4).count, 2);
  const CodebookShare third = codebook_share(2, 3, 8);
  EXPECT_EQ(third.first, 0);
  EXPECT_EQ(third.copies, 4);
  EXPECT_FALSE(third.speaker);
  EXPECT_TRUE(codebook_share(2, 4, 8).speaker);
  EXPECT_THROW(codebook_share(3, 0, 2), Error);
}

TEST(DuplexBatch, PaddingWithinATurnWeighsAsAsked) {
  // Two rows of 8; the turn of the first is open at its end.
  const std::vector<std::int32_t> targets{0, 1, 21, 0, 2, 0, 1, 0, 0, 0, 1, 22, 0, 0, 2, -1};
  std::vector<float> weights(targets.size());
  weigh_text({.pad = 0.25, .bos = 3, .eos = 2, .pad_in_turn = 0.5}, {.pad = 0, .bos = 1, .eos = 2},
             8, targets, weights);
  EXPECT_EQ(weights, (std::vector<float>{0.25, 3, 1, 0.5, 2, 0.25, 3, 0.5,  //
                                         0.25, 0.25, 3, 1, 0.5, 0.5, 2, 0}));
}

TEST(DuplexBatch, RanksShareAllCodesOfAPosition) {
  const DuplexConfig config = small_duplex();
  HostBatch host(config, {.samples = 2, .tokens = 3, .audio_samples = 960});
  auto* codes = host.batch["codes"].as<std::int32_t>();
  for (std::int32_t i = 0; i < 12; ++i) codes[i] = i;
  const auto field = std::ranges::find(host.batch.fields(), "codes", &BatchField::name);
  std::vector<std::int32_t> part(8);
  const auto mesh = Mesh::planned(Layout(1, 2, 1, 1), 1, 1);
  Communicator* const ranks = &mesh->along(Axis::context);
  const BatchRanks straight{{ranks}}, zigzag{{ranks, {ContextMode::gather}}};
  EXPECT_EQ(share_shape(host.batch, *field, straight), (Shape{4, 2}));
  copy_share(host.batch, *field, straight, part.data());
  EXPECT_EQ(part, (std::vector<std::int32_t>{4, 5, 0, 0, 10, 11, 0, 0}));
  EXPECT_EQ(share_shape(host.batch, *field, zigzag), (Shape{4, 2}));
  copy_share(host.batch, *field, zigzag, part.data());
  EXPECT_EQ(part, (std::vector<std::int32_t>{2, 3, 8, 9, 4, 5, 10, 11}));
}

TEST(DuplexBatch, RefusesWhatDoesNotFit) {
  EXPECT_NO_THROW(check_dialogue_length(small_duplex(), 24));
  EXPECT_THROW(check_dialogue_length(small_duplex(), 25), DeckError);
}

}  // namespace
}  // namespace choir::test
