// Tests evaluation tasks: what a file may contain, the rows of tokens that are scored, and the
// metrics, with the scores of SmolLM2-135M as transformers computes them.
#include <gtest/gtest.h>

#include <cmath>

#include "choir/core/error.hpp"
#include "src/data/tasks/eval_task.hpp"
#include "src/data/tasks/task_scores.hpp"

namespace choir {
namespace {

std::string refusal(const std::string& text) {
  try {
    parse_task(text, "folder/t.jsonl");
  } catch (const DataError& error) {
    return error.what();
  }
  return "accepted";
}

void expect_refused(const std::string& text, const std::string& words) {
  const std::string message = refusal(text);
  EXPECT_NE(message.find(words), std::string::npos) << text << "\n  " << message;
}

TEST(EvalTask, KindsFollowFromTheKeys) {
  const EvalTask facts = parse_task(
      "{\"context\": \"1 + 1 =\", \"choices\": [\"2\", \"3\"], \"answer\": 0, \"id\": 7}\r\n"
      "\n{\"context\": \"\", \"choices\": [\"a\", \"b\"], \"gold\": 1, \"delimiter\": \"\"}",
      "folder/facts.jsonl");
  EXPECT_EQ(facts.name, "facts");
  EXPECT_EQ(facts.kind, TaskKind::choices);
  ASSERT_EQ(facts.items.size(), 2u);
  EXPECT_EQ(facts.items[0].delimiter, " ");
  EXPECT_EQ(facts.items[1].answer, 1);
  EXPECT_EQ(facts.items[1].delimiter, "");
  EXPECT_EQ(facts.items[1].place, "folder/facts.jsonl:3") << "blank lines have numbers";

  const EvalTask ends = parse_task(R"({"context": "a", "continuation": " b"})", "e");
  EXPECT_EQ(ends.kind, TaskKind::continuation);
  EXPECT_EQ(ends.items[0].choices, std::vector<std::string>{" b"});
  EXPECT_EQ(ends.items[0].delimiter, "");

  const EvalTask spoken = parse_task(R"({"context": "a", "answer": "b", "max_tokens": 3})", "s");
  EXPECT_EQ(spoken.kind, TaskKind::generation);
  EXPECT_EQ(spoken.items[0].until, std::vector<std::string>{"\n"});
  EXPECT_EQ(spoken.items[0].max_tokens, 3);
  EXPECT_EQ(parse_task(R"({"text": "abc", "meta": {"x": 1}})", "t").kind, TaskKind::text);
}

TEST(EvalTask, EveryFaultHasItsLine) {
  const std::string good = "{\"context\": \"q\", \"choices\": [\"a\", \"b\"], \"answer\": 1}\n";
  const auto choices = [](const std::string& list, const std::string& answer) {
    return "{\"context\": \"q\", \"choices\": " + list + ", \"answer\": " + answer + "}";
  };
  expect_refused(good + choices(R"(["a", ""])", "0"), "folder/t.jsonl:2: choice 1 is empty");
  expect_refused(choices("[]", "0"), "t.jsonl:1: \"choices\" has no entry");
  expect_refused(choices(R"(["a"])", "0"), "has one entry");
  expect_refused(choices(R"(["a", 3])", "0"), "choice 1 is not a text");
  expect_refused(choices(R"(["a", "b"])", "2"), "\"answer\" is 2, but the 2 choices");
  expect_refused(choices(R"(["a", "b"])", "-1"), "\"answer\" is -1");
  expect_refused(choices(R"(["a", "b"])", "18446744073709551615"), "is 18446744073709551615");
  expect_refused(choices(R"(["a", "b"])", "1.0"), "not the index of a choice");
  expect_refused(choices(R"(["a", "b"])", "true"), "not the index of a choice");
  expect_refused(choices(R"(["a", "b"])", "NaN"), "folder/t.jsonl:1:");
  expect_refused(choices("\"ab\"", "0"), "\"choices\" is not a list");
  expect_refused(R"({"context": "q", "choices": ["a", "b"]})", "no \"answer\"");
  expect_refused(R"({"context": "q", "choices": ["a", "b"], "answer": 0, "gold": 0})",
                 "two names of one key");
  expect_refused(R"({"choices": ["a", "b"], "answer": 0})", "no \"context\"");
  expect_refused(R"({"context": "q", "choices": ["a", "b"], "answer": 0, "delimeter": ""})",
                 "no key \"delimeter\"; nearest legal: \"delimiter\"");
  expect_refused(good + R"({"text": "a"})",
                 "t.jsonl:2: the item is of kind text, but folder/t.jsonl:1 is of kind choices");
  expect_refused(R"({"context": "q"})", "has no \"choices\"");
  expect_refused(R"({"context": "q", "answer": " "})", "is blank");
  expect_refused(R"({"context": "q", "answer": "a", "max_tokens": 0})", "\"max_tokens\" is 0");
  expect_refused(R"({"context": "q", "answer": "a", "until": [""]})", "string 0 is empty");
  expect_refused(R"({"text": ""})", "\"text\" is empty");
  expect_refused("[1]", "not a JSON object");
  EXPECT_EQ(parse_task("\xEF\xBB\xBF" + good, "t.jsonl").items.size(), 1u);
  expect_refused(good + "{\"text\": \"\xFF\"}", "t.jsonl:2: byte 11 of the line is not UTF-8");
  expect_refused("\n \n", "has no items");
  EXPECT_EQ(refusal(good), "accepted");
}

TaskItem question(const std::string& context, const std::vector<std::string>& choices,
                  const std::string& delimiter = " ") {
  TaskItem item;
  item.place = "t:1";
  item.context = context;
  item.choices = choices;
  item.delimiter = delimiter;
  return item;
}

using Ids = std::vector<std::int32_t>;

Vocabulary characters() {
  return Vocabulary::characters({U' ', U'a', U'b', U'c'});
}

TEST(TaskRows, TrailingBlanksBelongToTheContinuation) {
  const Vocabulary vocabulary = characters();  // ' ' 0, a 1, b 2, c 3
  const TaskTokens tokens{.vocabulary = vocabulary, .positions = 8, .rows_of_table = 4};
  const ScoredRow plain = row_of_choice(question("ab", {"c"}), 0, tokens);
  EXPECT_EQ(plain.ids, (Ids{1, 2, 0, 3}));
  EXPECT_EQ(plain.scored, 2);
  const ScoredRow blanks = row_of_choice(question("ab  ", {"c"}, ""), 0, tokens);
  EXPECT_EQ(blanks.ids, (Ids{1, 2, 0, 0, 3}));
  EXPECT_EQ(blanks.scored, 3);
}

TEST(TaskRows, RowsWithoutContextHaveATokenInFront) {
  const Vocabulary vocabulary = characters();
  TaskTokens tokens{.vocabulary = vocabulary, .positions = 8, .rows_of_table = 4};
  EXPECT_THROW(row_of_choice(question("", {"c"}, ""), 0, tokens), DataError);
  tokens.front = 2;
  for (const char* context : {"", "  "}) {
    const ScoredRow row = row_of_choice(question(context, {"c"}, ""), 0, tokens);
    EXPECT_EQ(row.ids.front(), 2);
    EXPECT_EQ(row.scored, row.inputs()) << "all but the token in front";
  }
}

TEST(TaskRows, LongRowsLoseTheirFirstIds) {
  const Vocabulary vocabulary = characters();
  const TaskTokens tokens{.vocabulary = vocabulary, .positions = 4, .rows_of_table = 4};
  const ScoredRow row = row_of_choice(question("abcabc", {"aa"}, ""), 0, tokens);
  EXPECT_EQ(row.ids, (Ids{1, 2, 3, 1, 1})) << "4 inputs and the last target";
  EXPECT_EQ(row.scored, 2);
  EXPECT_THROW(row_of_choice(question("a", {"aaaaa"}, ""), 0, tokens), DataError);
  EXPECT_EQ(row_of_choice(question("a", {"bcab"}, ""), 0, tokens).ids, (Ids{1, 2, 3, 1, 2}));
  TaskItem spoken = question("abcabc", {});
  spoken.max_tokens = 2;
  EXPECT_EQ(prompt_of(spoken, tokens), (Ids{2, 3}));
  spoken.max_tokens = 4;
  EXPECT_THROW(prompt_of(spoken, tokens), DataError);
}

// The pairs (inputs, predictions) of 42 ids are those of the harness's rolling windows.
TEST(TaskRows, WindowsScoreEveryIdOnce) {
  Ids ids;
  for (std::int32_t i = 0; i < 42; ++i) ids.push_back(100 + i);
  using Pairs = std::vector<std::pair<std::int64_t, std::int64_t>>;
  const auto check = [&](std::int64_t window, std::int64_t overlap, const Pairs& expected) {
    Pairs pairs;
    std::int32_t next = 100;
    for (const ScoredRow& row : rolling_rows(ids, 7, window, overlap)) {
      pairs.emplace_back(row.inputs(), row.scored);
      for (auto i = row.ids.end() - row.scored; i != row.ids.end(); ++i) EXPECT_EQ(*i, next++);
      for (std::size_t i = 1; i < row.ids.size(); ++i)
        EXPECT_EQ(row.ids[i], row.ids[i - 1] == 7 ? 100 : row.ids[i - 1] + 1);
    }
    EXPECT_EQ(next, 142);
    EXPECT_EQ(pairs, expected) << window << "/" << overlap;
  };
  check(2048, 1, {{42, 42}});
  check(16, 1, {{16, 16}, {16, 16}, {16, 10}});
  check(16, 8, {{16, 16}, {16, 9}, {16, 9}, {16, 8}});
  check(1, 1, Pairs(42, {1, 1}));
}

// Log-probabilities and numbers of tokens by transformers 5.24 in fp32.
TEST(TaskMetrics, SharesOfSmolLM2) {
  struct Fact {
    std::vector<std::string> choices;
    std::int64_t answer;
    std::vector<double> scores;
    std::vector<std::int64_t> tokens;
  };
  const std::vector<Fact> facts{{{"Berlin", "Paris", "Madrid", "Rome"},
                                 1,
                                 {-10.774332, -4.509349, -13.265461, -7.391973},
                                 {1, 1, 1, 1}},
                                {{"Mercury", "Jupiter", "Neptune", "Mars"},
                                 0,
                                 {-2.615652, -5.741122, -7.741578, -2.396373},
                                 {1, 1, 1, 1}},
                                {{"silk", "milk", "honey", "paper that is used in books"},
                                 2,
                                 {-14.896156, -15.880555, -9.60687, -34.458377},
                                 {1, 1, 1, 6}},
                                {{"five", "twelve", "ten", "seven"},
                                 3,
                                 {-7.547078, -10.763808, -10.250965, -8.071467},
                                 {1, 1, 1, 1}},
                                {{"steam", "ice", "dew", "a very thick and heavy fog"},
                                 1,
                                 {-14.402305, -9.534097, -14.106072, -28.546558},
                                 {1, 1, 1, 6}},
                                {{"a dog", "a cat", "a cow", "a horse"},
                                 0,
                                 {-9.550834, -8.674611, -10.486545, -13.280161},
                                 {2, 2, 2, 2}},
                                {{"he harvested it.", "he drank it through a straw.",
                                  "the wheat sang a song.", "it flew away."},
                                 0,
                                 {-7.899993, -25.679735, -24.263231, -14.359152},
                                 {4, 7, 6, 4}},
                                {{"Wien", "Köln", "Zürich", "Düsseldorf"},
                                 0,
                                 {-8.726767, -17.723574, -14.730271, -20.155779},
                                 {1, 3, 3, 5}}};
  EvalTask task;
  task.kind = TaskKind::choices;
  std::vector<ItemScore> scores;
  for (const Fact& fact : facts) {
    task.items.push_back(question("", fact.choices));
    task.items.back().answer = fact.answer;
    scores.push_back({.log_probabilities = fact.scores, .tokens = fact.tokens});
  }
  const NamedNumbers metrics = task_metrics(task, scores);
  const NamedNumbers expected{{"acc", .625},      {"acc_stderr", std::sqrt(.625 * .375 / 7)},
                              {"acc_norm", .5},   {"acc_norm_stderr", std::sqrt(.25 / 7)},
                              {"acc_bytes", .5},  {"acc_bytes_stderr", std::sqrt(.25 / 7)},
                              {"acc_token", .25}, {"acc_token_stderr", std::sqrt(.25 * .75 / 7)}};
  ASSERT_EQ(metrics.size(), expected.size());
  for (std::size_t i = 0; i < metrics.size(); ++i) {
    EXPECT_EQ(metrics[i].first, expected[i].first);
    EXPECT_DOUBLE_EQ(metrics[i].second, expected[i].second) << metrics[i].first;
  }
}

TEST(TaskMetrics, CharactersBytesAndTies) {
  EvalTask task;
  task.kind = TaskKind::choices;
  // -3 of 3 characters and 6 bytes against -2.7 of 3 characters and 3 bytes.
  task.items.push_back(question("", {"äöü", "abc"}));
  task.items.back().answer = 0;
  const std::vector<ItemScore> scores{{.log_probabilities = {-3, -2.7}, .tokens = {6, 1}}};
  const NamedNumbers metrics = task_metrics(task, scores);
  ASSERT_EQ(metrics.size(), 4u) << "one item has no standard error";
  EXPECT_EQ(metrics[0].second, 0);
  EXPECT_EQ(metrics[1].second, 0) << "acc_norm counts characters";
  EXPECT_EQ(metrics[2].second, 1) << "acc_bytes counts bytes";
  EXPECT_EQ(metrics[3].second, 1);
  EXPECT_EQ(best_choice({-2, -1, -1}, {1, 1, 1}), 1u) << "the first of equal ones";
}

// The sum of log-probabilities, bytes and words of a text, and the results, by transformers.
TEST(TaskMetrics, PerplexitiesOfAText) {
  EvalTask task;
  task.kind = TaskKind::text;
  task.items.push_back(question(
      "In the beginning God created the heaven and the earth. And the earth was without form, and "
      "void; and darkness was upon the face of the deep.\nNaïve café – déjà vu.",
      {}));
  const std::vector<ItemScore> scores{{.log_probabilities = {-142.56023877434728}, .tokens = {42}}};
  const NamedNumbers expected{{"bits_per_byte", 1.2242318423077223},
                              {"byte_perplexity", 2.3363102060776573},
                              {"word_perplexity", 86.05679297257304},
                              {"token_perplexity", 29.793534276697645}};
  const NamedNumbers metrics = task_metrics(task, scores);
  ASSERT_EQ(metrics.size(), expected.size());
  for (std::size_t i = 0; i < metrics.size(); ++i) {
    EXPECT_EQ(metrics[i].first, expected[i].first);
    EXPECT_NEAR(metrics[i].second, expected[i].second, 1e-12 * expected[i].second);
  }
}

TEST(TaskMetrics, GeneratedTextsAndContinuations) {
  EXPECT_EQ(until_first("yes.\nNo", {"\n", "."}), "yes");
  EXPECT_EQ(until_first("yes", {"\n"}), "yes");
  EXPECT_TRUE(matches_reference(" two words\u00a0", "two words"));
  EXPECT_FALSE(matches_reference("two  words", "two words")) << "blanks inside count";
  EXPECT_FALSE(matches_reference("Two words", "two words"));
  EvalTask task;
  task.kind = TaskKind::continuation;
  task.items.assign(2, question("a", {"b"}));
  const std::vector<ItemScore> scores{{.log_probabilities = {-1}, .tokens = {1}, .matches = true},
                                      {.log_probabilities = {-3}, .tokens = {5}, .matches = false}};
  const NamedNumbers metrics = task_metrics(task, scores);
  EXPECT_EQ(metrics.front(), (std::pair<std::string, double>("acc", .5)));
  EXPECT_EQ(metrics.back().first, "perplexity");
  EXPECT_DOUBLE_EQ(metrics.back().second, std::exp(2.0)) << "a mean over items, as in the harness";
}

}  // namespace
}  // namespace choir
