// Tests that a report is made for any contents of the files of a run.
#include <fmt/core.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <limits>
#include <random>

#include "src/core/output.hpp"
#include "src/core/quantities.hpp"
#include "src/report/report_page.hpp"
#include "src/report/run_formats.hpp"
#include "src/report/svg_chart.hpp"
#include "test/support/exhaustive.hpp"

namespace choir::report {
namespace {

constexpr double kHuge = 1e300;

std::string start_record(const std::string& more = "") {
  return R"({"event":"start","time":"2026-11-22 04:00:00","step":0,"device":"cpu",)"
         R"("parameters":1000,"resident_before":1048576,)"
         R"("layout":{"tp":1,"cp":1,"dp":2,"pp":1,"order":"tp-cp-dp-pp"},)"
         R"("ranks":[{"node":0,"threads":1,"host":"a","planned":5e6},)"
         R"({"node":1,"threads":2,"host":"b","planned":5e6}],)"
         R"("memory":[{"name":"weights","place":"device","bytes":4e6},)"
         R"({"name":"text","place":"host","bytes":1e6}],)"
         R"("provenance":{"revision":"abc","host":"a","date":"today"})" +
         more + "}";
}

std::string step_line(int step) {
  return fmt::format(
      R"({{"step":{},"loss":{},"lr":0.001,"grad_norm":1.5,"dt":0.25,"dtf":0.1,"dtb":0.12,)"
      R"("data":0.001,"comm":0.01,"optimizer":0.01,"other":0.009,"tps":4096.5,"mfu":40.1,)"
      R"("mem":302653440,"allocated":4194304,"skipped":false{}}})",
      step, 3 + 1.0 / step, step % 5 == 0 ? R"(,"val_loss":2.5,"val_wer/a":0.5)" : "");
}

struct RunFiles {
  std::vector<std::string> metrics, log, deck;
};

RunFiles whole_run() {
  RunFiles files;
  files.metrics.push_back(start_record());
  for (int step = 1; step <= 12; ++step) files.metrics.push_back(step_line(step));
  files.log = {
      "[2026-11-22 04:00:00.000][I] ready after 1.0 s",
      "[2026-11-22 04:00:01.000][I] checkpoint /r/checkpoints/step_00000005 (1 MiB, 50 ms)",
      "[2026-11-22 04:00:01.500][W] step 6: slow",
      "[2026-11-22 04:00:02.000][W] stopping after step 6: SIGTERM",
      "summary:",
      "  steps            6",
      "[2026-11-22 04:00:03.000][I] resumed from /r/checkpoints/step_00000005 (step 5, 9 ms)",
      "[2026-11-22 04:00:04.000][I] ready after 1.0 s",
      "[2026-11-22 04:00:05.000][E] checkpoint of step 10 FAILED, training goes on: full",
      "[2026-11-22 04:00:06.000][E] ended with exit code 4: step 11: the loss is nan"};
  files.deck = {"{", R"("run": {"name": "r", "dir": "runs/r", "seed": 1},)",
                R"("train": {"max_steps": 100, "global_batch_size": 8},)",
                R"("sources": {"run.name": "deck.json:3"})", "}"};
  return files;
}

class DamagedRun : public ::testing::Test {
 protected:
  DamagedRun() {
    std::string name = (std::filesystem::temp_directory_path() / "choir_damaged_XXXXXX").string();
    folder_ = ::mkdtemp(name.data());
  }
  ~DamagedRun() override { std::filesystem::remove_all(folder_); }

  void put(const char* name, const std::vector<std::string>& lines) {
    std::ofstream file(folder_ / name, std::ios::binary);
    for (const std::string& line : lines) file << line << '\n';
  }
  /// Makes all reports of a run; an exception is a failure of the test.
  ReportedRun reported(const RunFiles& files) {
    put("metrics.jsonl", files.metrics);
    put("log.txt", files.log);
    put("deck.json", files.deck);
    ReportedRun run = read_run(folder_.string());
    const std::string page = report_page({run}, {});
    EXPECT_LT(page.size(), std::size_t{1} << 20);
    EXPECT_TRUE(page.ends_with("</html>\n"));
    EXPECT_EQ(page, printable(page)) << "control characters";
    EXPECT_FALSE(wandb_run(run).bytes.empty());
    return run;
  }
  static bool noted(const ReportedRun& run, const std::string& words) {
    return std::any_of(run.notes.begin(), run.notes.end(), [&](const std::string& note) {
      return note.find(words) != std::string::npos;
    });
  }
  std::filesystem::path folder_;
};

TEST(SafeNumbers, OutsideTheRangeAreItsEnds) {
  EXPECT_EQ(clamped_integer(1e300), std::numeric_limits<std::int64_t>::max());
  EXPECT_EQ(clamped_integer(9223372036854775808.0), std::numeric_limits<std::int64_t>::max());
  EXPECT_EQ(clamped_integer(-1e19), std::numeric_limits<std::int64_t>::min());
  EXPECT_EQ(clamped_integer(-9223372036854775808.0), std::numeric_limits<std::int64_t>::min());
  EXPECT_EQ(clamped_integer(NAN), 0);
  EXPECT_EQ(clamped_integer(-2.9), -2);
  EXPECT_EQ(format_count(std::numeric_limits<std::int64_t>::min()), "-9,223,372,036,854,775,808");
  EXPECT_EQ(format_duration(kHuge), "1e+300 s");
}

// A sum that is rounded back to its first term never reaches the end of the axis.
TEST(Ticks, AreFewWhateverTheAxis) {
  const double most = std::numeric_limits<double>::max();
  for (const auto& [low, high] :
       std::initializer_list<std::pair<double, double>>{{1e17, 1e17 + 16},
                                                        {1e17, 1e17 + 64},
                                                        {0, 1e300},
                                                        {0, kHuge},
                                                        {-most, most},
                                                        {0, 5e-324},
                                                        {1, 1 + 1e-15},
                                                        {9007199254740990, 9007199254740992},
                                                        {0, INFINITY}}) {
    const auto ticks = round_ticks(low, high, 5);
    EXPECT_GE(ticks.size(), 1u) << low << " " << high;
    EXPECT_LE(ticks.size(), 11u) << low << " " << high;
    EXPECT_TRUE(std::is_sorted(ticks.begin(), ticks.end())) << low << " " << high;
  }
}

TEST(Decimation, WidthsThatAreNoNumbers) {
  Curve curve;
  for (int i = 0; i < 1000; ++i) curve.x.push_back(i * 1e305), curve.y.push_back(i);
  const double most = std::numeric_limits<double>::max();
  EXPECT_LE(decimate(curve, -most, most, 400).size(), 401u);
  EXPECT_LE(decimate(curve, 0, 1e-300, 400).size(), 401u);
}

TEST_F(DamagedRun, StepsThatNoRunHasAreLeftOut) {
  for (const char* step : {"1e300", "18446744073709551616", "100000000000000016", "-1", "1.5",
                           "1e-320", "null", "\"7\"", "[7]", "inf", "nan"}) {
    RunFiles files = whole_run();
    files.metrics.push_back(fmt::format(R"({{"step":{},"loss":1}})", step));
    files.metrics.push_back(step_line(20));
    const ReportedRun run = reported(files);
    EXPECT_EQ(run.last_step(), 20) << step;
    EXPECT_TRUE(noted(run, "1 line of metrics.jsonl is damaged and was skipped")) << step;
  }
}

TEST_F(DamagedRun, StartRecordsThatCannotBeAreLeftOut) {
  const std::string deep = ",\"x\":" + std::string(100000, '[') + std::string(100000, ']');
  for (const std::string& more :
       {std::string(R"(,"layout":{"tp":-1,"cp":-1,"dp":2,"pp":1})"),
        std::string(R"(,"layout":{"tp":1e300,"dp":2})"), std::string(R"(,"layout":{"dp":0})"),
        std::string(R"(,"layout":{"dp":2,"order":"none"})"), std::string(R"(,"layout":[1])"),
        std::string(R"(,"layout":{"tp":65536,"cp":65536,"dp":65536,"pp":65536})"),
        std::string(R"(,"ranks":[{"node":-1},{"node":2147483647}])"),
        std::string(R"(,"ranks":[{"node":"a"},{}])"), std::string(R"(,"time":5)"), deep}) {
    RunFiles files = whole_run();
    files.metrics[0] = start_record(more);
    const ReportedRun run = reported(files);
    EXPECT_FALSE(run.start.known) << more.substr(0, 60);
    EXPECT_TRUE(noted(run, "damaged")) << more.substr(0, 60);
    EXPECT_EQ(run.last_step(), 12) << more.substr(0, 60);
  }
}

TEST_F(DamagedRun, ADeckMayHoldAnything) {
  for (const char* deck : {R"({"run":5,"run.x":{"y":1},"a":{"b.c":1},"a.b":2})", "[1]", "{",
                           R"({"sources":3,"run":{"name":[1]}})",
                           R"({"train":{"max_steps":1e300},"run":{"name":"\u001b]0;x\u0007"}})"}) {
    RunFiles files = whole_run();
    files.deck = {deck};
    reported(files);
  }
}

/// A line in which one part was changed.
std::string mutated(std::string line, std::mt19937_64& random) {
  static const std::array<std::string, 22> kValues{"1e17",
                                                   "9223372036854775808",
                                                   "-9223372036854775809",
                                                   "18446744073709551616",
                                                   "1e300",
                                                   "-1e300",
                                                   "1e-320",
                                                   "1e999",
                                                   "-1",
                                                   "0",
                                                   "2147483648",
                                                   "1.5",
                                                   "null",
                                                   "true",
                                                   "\"text\"",
                                                   "[]",
                                                   "{}",
                                                   "[[[[1]]]]",
                                                   "\"\\u001b[2J\"",
                                                   "\xff\xfe",
                                                   "\u202e",
                                                   "100000000000000016"};
  const auto below = [&](std::size_t n) { return n == 0 ? 0 : random() % n; };
  switch (below(6)) {
    case 0: {  // another number
      std::vector<std::size_t> digits;
      for (std::size_t i = 0; i < line.size(); ++i)
        if (std::isdigit(static_cast<unsigned char>(line[i])) != 0) digits.push_back(i);
      if (digits.empty()) return line;
      std::size_t from = digits[below(digits.size())], end = from;
      while (from > 0 &&
             std::string_view("0123456789.e-").find(line[from - 1]) != std::string::npos)
        --from;
      while (end < line.size() &&
             std::string_view("0123456789.e-").find(line[end]) != std::string::npos)
        ++end;
      return line.replace(from, end - from, kValues[below(kValues.size())]);
    }
    case 1:  // another byte
      if (!line.empty()) line[below(line.size())] = static_cast<char>(below(256));
      return line;
    case 2:  // truncated
      return line.substr(0, below(line.size() + 1));
    case 3: {  // a part is missing
      const std::size_t from = below(line.size() + 1);
      return line.erase(from, below(40));
    }
    case 4: {  // a part comes twice
      const std::size_t from = below(line.size() + 1);
      return line.insert(from, line.substr(from, below(60)));
    }
    default:  // something inserted
      return line.insert(below(line.size() + 1), kValues[below(kValues.size())]);
  }
}

TEST_F(DamagedRun, MutatedLinesAreNotesAtWorst) {
  const int rounds = test::exhaustive() ? 10000 : 400;
  std::mt19937_64 random(42);
  for (int round = 0; round < rounds; ++round) {
    RunFiles files = whole_run();
    auto& file = round % 4 == 3 ? (round % 8 == 3 ? files.log : files.deck) : files.metrics;
    std::string& line = file[random() % file.size()];
    const std::string before = line;
    line = mutated(line, random);
    SCOPED_TRACE(printable(before + "\nbecame " + line));
    try {
      reported(files);
    } catch (const std::exception& error) {
      ADD_FAILURE() << "round " << round << ": " << error.what();
    }
    if (HasFailure()) return;
  }
}

}  // namespace
}  // namespace choir::report
