// Compares the forward in fp64 with another implementation: PyTorch (torchaudio's formulas for
// features, pad-and-reshape for the relative shift, conv2d, conv1d, ctc_loss), weights by
// simple_value().
#include "test/unit/models/fastconformer/fastconformer_case.hpp"

namespace choir::test {
namespace {

struct Golden {
  std::int64_t id, samples, frames;
  double loss;
  std::vector<double> first, last;  ///< logits of these frames
};

const Golden kGolden[] = {
    {3,
     3000,
     10,
     14.184153966074005,
     {-2.28114059372376, 0.0925094756652839, 1.86012175026404, 0.521092540009468, -1.40661684849935,
      -0.580481035145523, 1.71175692226919},
     {-2.23493842929685, -0.498950382990944, 1.5737811297156, 0.996295321305289, -0.927339276144433,
      -0.861092459826729, 1.11854838180748}},
    {8,
     2100,
     7,
     9.22338206110103,
     {-2.26867014936152, -0.000858275425712596, 1.80974309071123, 0.594006065256685,
      -1.32663458841983, -0.620920984762012, 1.6153556492602},
     {-2.22267387476778, -0.554787216116778, 1.53884627777697, 1.03794826471047, -0.875492923998569,
      -0.881695279918165, 1.05833708428773}}};

TEST(FastConformer, ForwardIsThatOfPyTorch) {
  const FastConformerConfig c = tiny_conformer();
  TinyModel model(c);
  const SpeechBatch speech(c, {3, 8}, {3000, 2100});
  const Tensor logits = model.forward(Mode::generate, speech.batch);
  const std::int64_t tokens = model.pass().sequence().tokens;
  for (std::int64_t b = 0; b < 2; ++b) {
    const Golden& golden = kGolden[b];
    ASSERT_EQ(model.pass().sequence().lengths[b], golden.frames);
    for (std::size_t v = 0; v < golden.first.size(); ++v) {
      const auto at = [&](std::int64_t frame) {
        return logits.as<double>()[(b * tokens + frame) * 7 + static_cast<std::int64_t>(v)];
      };
      // 15 digits are printed, and both implementations round: spectra of 129 bins, sums of some
      // hundred terms.
      EXPECT_NEAR(at(0), golden.first[v], 1e-11) << b << " " << v;
      EXPECT_NEAR(at(golden.frames - 1), golden.last[v], 1e-11) << b << " " << v;
    }
  }
  const Tensor losses = model.forward(Mode::evaluate, speech.batch);
  for (std::int64_t b = 0; b < 2; ++b)
    EXPECT_NEAR(losses.as<double>()[b], kGolden[b].loss, 1e-10) << b;
}

}  // namespace
}  // namespace choir::test
