#include <fmt/core.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "choir/core/error.hpp"
#include "src/app/bench.hpp"
#include "src/core/text.hpp"

namespace choir {
namespace {

BenchReport report() {
  BenchReport r{.bench = "attention", .device = "a card, 80 GB", .ceilings = {"1 TFLOP/s"}};
  ops::BenchRow row{.name = "attention forward", .variant = "own", .shape = "T 64"};
  row.unit = ops::BenchUnit::flops;
  row.seconds = 2e-3, row.work = 1e9, row.ceiling = 1e12, row.error = 1e-3, row.allowed = 4e-3;
  row.calls = 12;
  r.rows.push_back(row);
  row.variant = "cudnn", row.seconds = 1e-3;
  r.rows.push_back(row);
  return r;
}

TEST(BenchReport, TableJsonAndCsvSayTheSame) {
  const BenchReport r = report();
  EXPECT_TRUE(r.valid());
  const std::string text = to_string(r);
  EXPECT_NE(text.find("own is 0.50 x cudnn"), std::string::npos) << text;
  EXPECT_NE(text.find("these calls in 24.000 ms"), std::string::npos) << text;
  EXPECT_NE(text.find("VALID: 2 rows"), std::string::npos) << text;
  const auto json = nlohmann::json::parse(to_json(r));
  EXPECT_EQ(json["rows"][0]["rate"], 5e11);
  EXPECT_EQ(json["rows"][1]["fraction"], 1.0);
  EXPECT_EQ(json["provenance"]["device"], "a card, 80 GB");
  EXPECT_TRUE(json["provenance"].contains("revision"));
  const auto lines = split(to_csv(r), '\n');
  ASSERT_EQ(lines.size(), 4u);                                              // the last is empty
  EXPECT_EQ(split(lines[0], ',').size() + 1, split(lines[1], ',').size());  // a comma in quotes
}

TEST(BenchReport, OneWrongRowOrNoneAtAllIsInvalid) {
  BenchReport r = report();
  r.rows[1].error = NAN;
  EXPECT_FALSE(r.valid());
  EXPECT_NE(to_string(r).find("INVALID: 1 of 2 rows"), std::string::npos);
  r.rows.clear();
  EXPECT_FALSE(r.valid());
}

TEST(BenchWords, AreSorted) {
  const BenchWords words = sort_words({"device=cpu", "inputs/a.json", "train.precision=fp32"});
  EXPECT_EQ(words.deck, "inputs/a.json");
  EXPECT_EQ(words.device, "cpu");
  EXPECT_EQ(words.overrides, Arguments{"train.precision=fp32"});
  EXPECT_THROW(sort_words({"a.json", "b.json"}), DeckError);
}

TEST(BenchFiles, RefusesAFolderThatIsNotThere) {
  const std::string absent = testing::TempDir() + fmt::format("choir_absent_{}", ::getpid());
  const BenchFiles files{.csv = absent + "/x.csv"};
  EXPECT_THROW(files.require_writable(), StorageError);
}

}  // namespace
}  // namespace choir
