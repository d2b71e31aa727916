// Tests that the scores of evaluation tasks are the same in every layout, and that they are the
// log-probabilities of the logits that generation computes, id by id.
#include <gtest/gtest.h>

#include <cmath>
#include <optional>

#include "src/models/gpt/generator.hpp"
#include "src/models/gpt/task_evaluation.hpp"
#include "test/mpi/train/layout_case.hpp"
#include "test/support/mpi_test.hpp"
#include "test/unit/train/engine_case.hpp"

namespace choir {
namespace {

using test::GridLayout;

/// 19 tokens, as the tiny models have.
Vocabulary letters() {
  std::vector<char32_t> all{U'\n'};
  for (char32_t c = U'a'; all.size() < 19; ++c) all.push_back(c);
  return Vocabulary::characters(all);
}

std::vector<EvalTask> tasks() {
  std::string choices, ends, spoken;
  for (int i = 0; i < 7; ++i) {
    const std::string context =
        std::string("abcdefghijklmnopqr").substr(static_cast<std::size_t>(i));
    choices += "{\"context\": \"" + context + "\", \"choices\": [\"ab\", \"" + context +
               "\", \"c\"], \"answer\": 1, \"delimiter\": \"\"}\n";
    ends += "{\"context\": \"" + context + "\", \"continuation\": \"ab\"}\n";
    spoken += "{\"context\": \"" + context + "\", \"answer\": \"ab\", \"max_tokens\": 3}\n";
  }
  return {parse_task(choices, "choices"), parse_task(ends, "ends"), parse_task(spoken, "spoken"),
          parse_task(R"({"text": "abcdefgabcdefghijklmnopqrabcabcabc"})", "text")};
}

struct Scores {
  std::vector<double> numbers;
  std::vector<std::string> texts;
};

GptConfig config_of() {
  GptConfig config = test::tiny_llama();
  config.block_size = 32;
  return config;
}

Scores evaluate(const ModelInstance::Options& options, Mesh& mesh, std::int64_t batch_tokens) {
  CpuDevice device;
  ModelInstance instance(options, device, mesh, std::size_t{1} << 24);
  instance.initialise(3);
  const TaskEvaluation evaluation(
      tasks(), letters(), options.model.as<GptConfig>(),
      {.batch_tokens = batch_tokens, .together = 2, .window = 16, .overlap = 4, .front = 0});
  Scores scores;
  for (const TaskResult& result : evaluation.evaluate(instance)) {
    for (const auto& [name, value] : result.metrics) scores.numbers.push_back(value);
    for (const ItemScore& item : result.items) {
      scores.numbers.insert(scores.numbers.end(), item.log_probabilities.begin(),
                            item.log_probabilities.end());
      scores.numbers.push_back(item.matches);
      scores.texts.push_back(item.generated);
    }
  }
  return scores;
}

std::vector<GridLayout> grids() {
  std::vector<GridLayout> all{{}, {.zero = {.stage = 3}}};
  if (test::world_size() % 2 == 0) {
    all.push_back({.tensor = 2});
    all.push_back({.tensor = 2, .zero = {.stage = 3}});
    all.push_back({.pipeline = 2});
    all.push_back({.context = 2});
  }
  return all;
}

TEST(TaskLayouts, ScoresDoNotDependOnTheRanks) {
  const ModelInstance::Options options{
      .model = config_of(), .precision = precision_of("fp64"), .seed = 3};
  test::SingleRank single;
  const Scores one = evaluate(options, *single.mesh, 64);
  ASSERT_GT(one.numbers.size(), 50u);
  test::Meshes meshes;
  for (const GridLayout& grid : grids()) {
    ModelInstance::Options divided = options;
    divided.zero = grid.zero;
    const Scores many = evaluate(divided, meshes.of(grid), 64);
    EXPECT_ALL_RANKS(test::distance(one.numbers, many.numbers) <= 1e-12) << grid.to_string();
    EXPECT_ALL_RANKS(one.texts == many.texts) << grid.to_string();
  }
  const Scores other = evaluate(options, *single.mesh, 16);
  EXPECT_ALL_RANKS(test::distance(one.numbers, other.numbers) <= 1e-12) << "other batches";
}

// The oracle feeds the context one id at a time and normalises the logits itself.
TEST(TaskLayouts, ScoresAreThoseOfTheLogits) {
  test::SingleRank single;
  CpuDevice device;
  const GptConfig config = config_of();
  ModelInstance instance({.model = config, .precision = precision_of("fp64"), .seed = 3}, device,
                         *single.mesh, std::size_t{1} << 24);
  instance.initialise(3);
  const std::vector<ScoredRow> rows{{.ids = {1, 2, 3, 4}, .scored = 1},
                                    {.ids = {1, 2, 3, 4, 5, 6}, .scored = 5},
                                    {.ids = std::vector<std::int32_t>(33, 7), .scored = 3}};
  const std::vector<RowBatch> batches = row_batches(rows, 64, config.block_size);
  ASSERT_EQ(batches.size(), 2u) << "16 and 32 inputs";
  EXPECT_EQ(batches[0].rows, 2);
  const std::vector<double> sums = score_rows(instance, rows, batches);
  const auto width = static_cast<std::size_t>(config.vocab_size);
  for (std::size_t r = 0; r < rows.size(); ++r) {
    const std::vector<std::int32_t>& ids = rows[r].ids;
    const std::vector<double> logits =
        Generator(instance).logits({ids.begin(), std::prev(ids.end())});
    double expected = 0;
    for (std::size_t at = ids.size() - static_cast<std::size_t>(rows[r].scored); at < ids.size();
         ++at) {
      const double* const row = logits.data() + (at - 1) * width;
      double total = 0;
      for (std::size_t v = 0; v < width; ++v) total += std::exp(row[v]);
      expected += row[static_cast<std::size_t>(ids[at])] - std::log(total);
    }
    EXPECT_ALL_RANKS(std::abs(sums[r] - expected) <= 1e-12 * std::abs(expected))
        << r << " " << sums[r] << " " << expected;
  }
}

TEST(TaskLayouts, AGreedyMatchIsWhatGenerationChooses) {
  test::SingleRank single;
  CpuDevice device;
  ModelInstance instance({.model = config_of(), .precision = precision_of("fp64"), .seed = 3},
                         device, *single.mesh, std::size_t{1} << 24);
  instance.initialise(3);
  const Vocabulary vocabulary = letters();
  const auto chosen = Generator(instance).generate({1, 2, 3}, 3, {.temperature = 0});
  const std::string right = vocabulary.decode(std::vector(chosen.begin() + 3, chosen.end()));
  ASSERT_EQ(right.find('\n'), std::string::npos) << "the test needs letters";
  const std::string wrong = right.substr(0, 2) + (right[2] == 'a' ? "b" : "a");
  const auto line = [](const std::string& key, const std::string& text) {
    return "{\"context\": \"abc\", \"" + key + "\": \"" + text + "\"" +
           (key == "answer" ? ", \"max_tokens\": 3}\n" : "}\n");
  };
  for (const char* key : {"continuation", "answer"}) {
    const TaskEvaluation evaluation({parse_task(line(key, right) + line(key, wrong), "t")},
                                    vocabulary, config_of(), {.front = 0});
    const TaskResult result = evaluation.evaluate(instance).front();
    EXPECT_ALL_RANKS(result.items[0].matches && !result.items[1].matches) << key;
    EXPECT_ALL_RANKS(result.metrics.front().second == .5) << key;
  }
}

}  // namespace
}  // namespace choir
