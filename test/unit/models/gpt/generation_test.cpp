// Tests that generation token by token with a cache gives the same logits as all tokens at once.
#include <gtest/gtest.h>

#include <set>

#include "src/models/gpt/generator.hpp"
#include "src/models/gpt/gpt.hpp"
#include "src/run/null_instance.hpp"
#include "test/unit/train/engine_case.hpp"

namespace choir {
namespace {

/// A model with its own arena, and logits of the last position of `ids`, given in portions of
/// `piece`.
class Speaker {
 public:
  Speaker(const GptConfig& config, const char* precision)
      : instance_({config, precision_of(precision), 3, false}, device_, *single_.mesh, 1 << 20) {
    instance_.initialise(3);
    for (Parameter& p : instance_.parameters().parameters())  // far from the small initial values
      for (std::int64_t i = 0; i < p.count(); ++i) {
        const double more = 0.3 * normal_at(philox_key(4, p.name), static_cast<std::uint64_t>(i));
        if (p.master.dtype == DType::f64)
          p.master.as<double>()[i] += more;
        else
          p.master.as<float>()[i] += static_cast<float>(more);
      }
    instance_.publish();
  }
  ModelInstance& instance() { return instance_; }

  std::vector<double> logits(const std::vector<std::int32_t>& ids, std::size_t piece) {
    StreamState state = instance_.model().make_state(instance_.pass(), 1);
    std::vector<double> result;
    for (std::size_t at = 0; at < ids.size(); at += piece) {
      const std::size_t n = std::min(piece, ids.size() - at);
      const auto count = static_cast<std::int64_t>(n);
      instance_.pass().begin(Mode::generate, state.next(count), 0);
      const TensorView view{const_cast<std::int32_t*>(ids.data() + at), DType::i32, {count}};
      const Tensor out = instance_.as<Gpt>().next_logits(instance_.pass(), view);
      state.advance(count);
      result.clear();
      for (std::int64_t i = 0; i < out.count(); ++i)
        result.push_back(out.dtype == DType::f64 ? out.as<double>()[i]
                         : out.dtype == DType::f32
                             ? static_cast<double>(out.as<float>()[i])
                             : static_cast<double>(static_cast<float>(out.as<bf16>()[i])));
    }
    return result;
  }
  std::int32_t best(const std::vector<std::int32_t>& ids) {
    const auto l = logits(ids, ids.size());
    return static_cast<std::int32_t>(std::max_element(l.begin(), l.end()) - l.begin());
  }

 private:
  CpuDevice device_;
  test::SingleRank single_;
  ModelInstance instance_;
};

std::vector<GptConfig> shapes() {
  GptConfig grouped = test::tiny_gpt(), rotary = test::tiny_gpt();
  grouped.n_kv_head = 2;
  rotary.position = Position::rope;
  GptConfig modern = test::tiny_llama();
  modern.own_head_width = 10;
  modern.qk_norm = true;
  modern.qkv_bias = Biases::yes;
  modern.rope_scaling = {.kind = ops::RopeScaling::Kind::yarn, .factor = 4, .original = 64};
  modern.rope_skip_interval = 2;
  modern.window = 3;
  GptConfig gemma = modern;
  gemma.activation = ops::Activation::geglu;
  gemma.norm_offset = true;
  gemma.norm_place = NormPlace::both;
  gemma.embedding_scale = 4, gemma.logit_scale = 0.5;
  gemma.attention_softcap = 1, gemma.logit_softcap = 3;
  gemma.rope_local_theta = 50, gemma.rope_scaling_layers = ScaledLayers::full;
  gemma.window_skip_interval = 2, gemma.rope_skip_interval = 0;
  GptConfig longrope = rotary;  // the long factors hold before the original length, too
  longrope.rope_width = 4;
  longrope.rope_scaling = {.kind = ops::RopeScaling::Kind::longrope, .factor = 2, .original = 4};
  longrope.rope_short_factors = {"1", "1.5"}, longrope.rope_long_factors = {"1.25", "40"};
  return {test::tiny_gpt(), test::tiny_llama(), grouped, rotary, modern, gemma, longrope};
}

TEST(Generation, CacheEqualsTheFullContext) {
  const std::vector<std::int32_t> ids{3, 1, 4, 1, 5, 9, 2, 6};
  for (const GptConfig& config : shapes())
    for (const auto& [precision, unit] :
         {std::pair{"fp64", 0x1p-53}, {"fp32", 0x1p-24}, {"bf16-mixed", 0x1p-8}}) {
      Speaker speaker(config, precision);
      const auto full = speaker.logits(ids, ids.size());
      double largest = 1;
      for (const double l : full) largest = std::max(largest, std::abs(l));
      // Some ten roundings per layer, amplified by weights with row norms of about 2 through two
      // layers.
      const double tolerance = 2 * 10 * 4 * unit;
      for (const std::size_t piece : {1, 3}) {
        const auto split = speaker.logits(ids, piece);
        for (std::size_t i = 0; i < full.size(); ++i)
          EXPECT_NEAR(split[i], full[i], tolerance * largest)
              << precision << " pieces of " << piece;
      }
      EXPECT_GT(test::distance(full, speaker.logits({3, 1, 4, 1, 5, 9, 6, 2}, 8)), 0.1)
          << "order matters";
    }
}

TEST(Generation, EndsWithAnyOfTheStops) {
  Speaker speaker(test::tiny_gpt(), "fp32");
  const std::vector<std::int32_t> prompt{3, 1, 4};
  TokenChoice choice{.temperature = 1, .seed = 7};
  const auto all = Generator(speaker.instance()).generate(prompt, 12, choice);
  ASSERT_EQ(all.size(), prompt.size() + 12);
  const auto first = all.begin() + std::ssize(prompt), third = first + 2;
  choice.stop = {-5, *third};
  const auto end = std::find(first, all.end(), *third) + 1;
  std::vector<std::int32_t> seen;
  const auto ended =
      Generator(speaker.instance()).generate(prompt, 12, choice, [&](std::int32_t token) {
        seen.push_back(token);
      });
  EXPECT_EQ(ended, std::vector<std::int32_t>(all.begin(), end));
  EXPECT_EQ(seen, std::vector<std::int32_t>(first, end - 1)) << "the stop is not seen";
}

TEST(Generation, StreamsGoOnTogether) {
  const std::vector<std::int32_t> one{3, 1, 4, 1, 5, 9}, other{2, 7, 1, 8, 2, 8};
  for (const GptConfig& config : shapes()) {
    Speaker speaker(config, "fp64");
    ModelInstance& instance = speaker.instance();
    StreamState state = instance.model().make_state(instance.pass(), 2);
    Tensor both;
    for (const std::int64_t at : {0, 2, 4}) {
      std::vector<std::int32_t> ids;
      for (const auto* stream : {&one, &other})
        ids.insert(ids.end(), stream->begin() + at, stream->begin() + at + 2);
      instance.pass().begin(Mode::generate, state.next(2), 0);
      both = instance.as<Gpt>().next_logits(instance.pass(), {ids.data(), DType::i32, {4}});
      state.advance(2);
    }
    std::vector<double> alone = speaker.logits(one, one.size());
    const std::vector<double> next = speaker.logits(other, other.size());
    alone.insert(alone.end(), next.begin(), next.end());
    EXPECT_LE(test::distance(alone, {both.as<double>(), both.as<double>() + both.count()}), 1e-13);
  }
}

// Beyond the block the newest half is read again; each token is the best one of exactly that
// context.
TEST(Generation, SlidesBeyondTheBlock) {
  for (const GptConfig& config : shapes()) {
    Speaker speaker(config, "fp64");
    std::vector<std::int32_t> heard;
    const auto tokens = Generator(speaker.instance())
                            .generate({7, 2, 5}, 20, {.temperature = 0},
                                      [&](std::int32_t t) { heard.push_back(t); });
    ASSERT_EQ(tokens.size(), 23u);
    EXPECT_EQ(heard, std::vector<std::int32_t>(tokens.begin() + 3, tokens.end()));
    std::size_t start = 0;
    for (std::size_t n = 3; n < tokens.size(); ++n) {
      if (n - start > 8) start = n - 4;
      EXPECT_EQ(tokens[n], speaker.best({tokens.begin() + static_cast<std::ptrdiff_t>(start),
                                         tokens.begin() + static_cast<std::ptrdiff_t>(n)}))
          << n;
    }
  }
}

/// Prompts of any lengths up to the block of 8 and beyond, greedy and drawn.
std::vector<Question> questions_of_any_length() {
  return {{.prompt = {4}, .choice = {.temperature = 0}},
          {.prompt = {3, 1, 4, 1, 5, 9, 2, 6}, .choice = {.temperature = 0}},
          {.prompt = {2, 7, 1}, .choice = {.temperature = 1, .seed = 5}},
          {.prompt = {3, 1, 4}, .choice = {.temperature = 2, .top_k = 9, .seed = 6}},
          {.prompt = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10}, .choice = {.temperature = 0}},
          {.prompt = {2, 7, 1, 8, 2}, .choice = {.temperature = 0}}};
}

using Texts = std::vector<std::vector<std::int32_t>>;
constexpr std::int64_t kAnswerLength = 20;  // all exceed the block

Texts each_alone(Generator& generator, const std::vector<Question>& questions) {
  Texts texts;
  for (const Question& question : questions)
    texts.push_back(generator.generate(question.prompt, kAnswerLength, question.choice));
  return texts;
}

// Rows are padded, leave when they end, and start again when the longest one is full.
TEST(Generation, TogetherAsEachAlone) {
  for (const GptConfig& config : shapes()) {
    Speaker speaker(config, "fp64");
    Generator generator(speaker.instance());
    std::vector<Question> questions = questions_of_any_length();
    const Texts alone = each_alone(generator, questions);
    ASSERT_EQ(std::set(alone.begin(), alone.end()).size(), alone.size());
    EXPECT_EQ(generator.generate_together(questions, kAnswerLength), alone);

    // The first ends at once, number i with token i or at an earlier equal token.
    for (std::size_t i = 0; i < alone.size(); ++i)
      questions[i].choice.stop = {alone[i][questions[i].prompt.size() + i]};
    Texts heard(alone.size());
    const Texts ended = generator.generate_together(
        questions, kAnswerLength,
        [&](std::size_t i, std::int32_t token) { heard[i].push_back(token); });
    EXPECT_EQ(ended, each_alone(generator, questions));
    EXPECT_EQ(ended[0].size(), questions[0].prompt.size() + 1);
    for (std::size_t i = 0; i < alone.size(); ++i)
      EXPECT_EQ(heard[i],
                std::vector(ended[i].begin() + std::ssize(questions[i].prompt), ended[i].end() - 1))
          << "the stop is not seen";
  }
}

TEST(Generation, PlanHoldsABatchOfAnyLengths) {
  CpuDevice device;
  test::SingleRank single;
  for (const GptConfig& config : shapes()) {
    const ModelInstance::Options options{config, precision_of("fp64"), 3, false};
    const std::vector<Question> questions = questions_of_any_length();
    const StepPlan plan = plan_inference(
        options, single.mesh->layout(), 0,
        [&](ModelInstance& instance) { Generator(instance).plan(std::ssize(questions)); }, &device);
    ModelInstance instance(options, device, *single.mesh, plan.arena_bytes);
    instance.initialise(3);
    instance.publish();
    Generator generator(instance);
    EXPECT_EQ(generator.generate_together(questions, kAnswerLength).size(), questions.size());
    EXPECT_LE(instance.arena().peak(), plan.arena_bytes);
  }
}

TEST(Generation, PromptLongerThanTheBlock) {
  Speaker speaker(test::tiny_llama(), "fp64");
  const std::vector<std::int32_t> prompt{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11};
  const auto tokens = Generator(speaker.instance()).generate(prompt, 1, {.temperature = 0});
  EXPECT_EQ(tokens.back(), speaker.best({prompt.begin() + 3, prompt.end()}));
  EXPECT_THROW(Generator(speaker.instance()).generate({}, 1, {}), Error);
}

}  // namespace
}  // namespace choir
