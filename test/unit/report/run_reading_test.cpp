// Tests how a report reads the files of a run, whole and damaged.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/file.h>
#include <unistd.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>

#include "choir/core/error.hpp"
#include "src/core/process.hpp"
#include "src/report/report_page.hpp"
#include "src/report/svg_chart.hpp"
#include "src/run/evaluation_record.hpp"
#include "test/support/families.hpp"

namespace choir::report {
namespace {

class RunReading : public ::testing::Test {
 protected:
  RunReading()
      : folder_(std::filesystem::temp_directory_path() /
                ("choir_report_" + std::to_string(::getpid()))) {
    std::filesystem::remove_all(folder_);
    std::filesystem::create_directories(folder_ / "samples");
  }
  ~RunReading() override { std::filesystem::remove_all(folder_); }
  void put(const char* name, const std::string& text) { std::ofstream(folder_ / name) << text; }
  bool noted(const ReportedRun& run, const std::string& words) {
    for (const std::string& note : run.notes)
      if (note.find(words) != std::string::npos) return true;
    return false;
  }
  std::filesystem::path folder_;
};

TEST(MetricLines, NumbersNullsAndOtherObjects) {
  MetricLines lines;
  lines.add(R"({"step":1,"loss":2.5,"skipped":false})");
  lines.add(R"({"event":"start","step":0})");
  lines.add(R"({"step":2,"loss":null,"val_loss":3e-2,"skipped":true})");
  lines.add(R"({"other":{"a":[1,2]}})");
  EXPECT_EQ(lines.lines(), 2u);
  EXPECT_EQ(lines.records().size(), 1u);
  EXPECT_EQ(lines.broken(), 0u);
  EXPECT_FALSE(lines.cut());
  const auto curves = lines.take_curves();
  EXPECT_EQ(curves.at("loss").y[0], 2.5);
  EXPECT_TRUE(std::isnan(curves.at("loss").y[1]));
  EXPECT_EQ(curves.at("val_loss").x, std::vector<double>{2});
  EXPECT_EQ(curves.at("val_loss").y, std::vector<double>{0.03});
  EXPECT_EQ(curves.at("skipped").y, (std::vector<double>{0, 1}));
}

// The program writes the times of the ranks into metrics.jsonl; newer programs may write more.
TEST(MetricLines, RecordsOfOtherKindsAreNotDamaged) {
  MetricLines lines;
  lines.add(R"({"step":100,"compute":{"steps":100,"p50":0.1,"slowest_host":"a"}})");
  lines.add(R"({"step":100,"phase":"later"})");
  EXPECT_EQ(lines.broken(), 0u);
  lines.add(R"({"step":0.5,"compute":{"steps":100}})");
  EXPECT_EQ(lines.broken(), 1u);
  EXPECT_EQ(lines.lines(), 0u);
}

TEST(MetricLines, CutLastLineIsNotADamagedOne) {
  MetricLines lines;
  lines.add(R"({"step":1,"loss":2})");
  lines.add(R"({"step":2,"loss)");
  EXPECT_TRUE(lines.cut());
  EXPECT_EQ(lines.broken(), 0u);
  lines.add(R"({"step":3,"loss":1})");
  EXPECT_FALSE(lines.cut());
  EXPECT_EQ(lines.broken(), 1u);
}

TEST(MetricLines, StepsThatCameTwiceCountOnce) {
  MetricLines lines;
  for (const char* line : {R"({"step":1,"loss":9})", R"({"step":2,"loss":8})",
                           R"({"step":1,"loss":7})", R"({"step":3,"loss":6})"})
    lines.add(line);
  EXPECT_TRUE(lines.repeated());
  const Curve loss = lines.take_curves().at("loss");
  EXPECT_EQ(loss.x, (std::vector<double>{1, 2, 3}));
  EXPECT_EQ(loss.y, (std::vector<double>{7, 8, 6}));
}

TEST_F(RunReading, EnergyOfAllJobs) {
  // The second job counts from 0 again.
  put("metrics.jsonl",
      "{\"step\":1,\"loss\":2,\"energy_j\":3,\"j_per_token\":0.5,\"energy_total_j\":1000}\n"
      "{\"step\":2,\"loss\":1,\"energy_j\":3,\"j_per_token\":0.5,\"energy_total_j\":2500}\n"
      "{\"step\":3,\"loss\":1,\"energy_j\":3,\"j_per_token\":0.5,\"energy_total_j\":500}\n");
  const std::string page = report_page({read_run(folder_.string())}, {});
  EXPECT_NE(page.find("<dt>energy</dt><dd>3 kJ <small>500 mJ a token</small>"), std::string::npos);
  EXPECT_NE(page.find("joules per token, all devices"), std::string::npos);
  put("metrics.jsonl", "{\"step\":1,\"loss\":2}\n");
  EXPECT_EQ(report_page({read_run(folder_.string())}, {}).find("<dt>energy</dt>"),
            std::string::npos);
}

TEST_F(RunReading, EventsOfALogWithAStopARestartAndAFailedSave) {
  put("metrics.jsonl", "{\"step\":10,\"loss\":1}\n");
  put("log.txt",
      "[2026-11-22 04:00:00.000][I] ready after 1.0 s\n"
      "[2026-11-22 04:00:01.000][I] checkpoint /r/checkpoints/step_00000005 (1 MiB, 50 ms, 9 "
      "MiB/s)\n"
      "[2026-11-22 04:00:01.500][I] checkpoint, save: 0 %, 1 s left\n"
      "[2026-11-22 04:00:02.000][W] stopping after step 6: SIGTERM\n"
      "summary:\n  steps            6\nrun the same command again to continue\n"
      "[2026-11-22 04:00:03.000][I] resumed from /r/checkpoints/step_00000005 (step 5, 9 ms)\n"
      "[2026-11-22 04:00:04.000][I] ready after 1.0 s\n"
      "[2026-11-22 04:00:05.000][E] checkpoint of step 10 FAILED, training goes on: full\n");
  const ReportedRun run = read_run(folder_.string());
  ASSERT_EQ(run.events.size(), 6u);
  const EventKind kinds[]{EventKind::start, EventKind::save,    EventKind::stop,
                          EventKind::end,   EventKind::restart, EventKind::failed_save};
  const std::int64_t steps[]{0, 5, 6, 6, 5, 10};
  for (std::size_t i = 0; i < 6; ++i) {
    EXPECT_EQ(run.events[i].kind, kinds[i]) << i;
    EXPECT_EQ(run.events[i].step, steps[i]) << i;
  }
  EXPECT_EQ(run.events[5].time, "2026-11-22 04:00:05");
  EXPECT_EQ(run.fate, Fate::silent);
  EXPECT_NE(run.state.find("no lines since 2026-11-22 04:00:05"), std::string::npos) << run.state;
}

TEST_F(RunReading, OpenEndsByLockHostAndAge) {
  put("metrics.jsonl",
      "{\"step\":10,\"loss\":1,\"dt\":1.0}\n{\"step\":20,\"loss\":1,\"dt\":1.0}\n");
  put("log.txt", "[2026-11-22 04:00:00.000][I] ready after 1.0 s\n");
  const std::string log = (folder_ / "log.txt").string();
  ReportedRun run = read_run(folder_.string());
  // Lines come every 10 s: a silence of 160 s is not yet reported.
  judge_open_end(log, "2026-11-22 04:02:30", run);
  EXPECT_EQ(run.fate, Fate::running);
  EXPECT_NE(run.state.find("probably running"), std::string::npos) << run.state;
  EXPECT_NE(report_page({run}, {}).find("<p class=note>" + run.state), std::string::npos)
      << "that it runs is no warning";
  judge_open_end(log, "2026-11-22 04:02:50", run);
  EXPECT_EQ(run.fate, Fate::silent);
  EXPECT_NE(report_page({run}, {}).find("<p class=warn>" + run.state), std::string::npos);
  run.start.ranks.push_back({.host = host_name()});  // no process holds its log here
  judge_open_end(log, "2026-11-22 04:00:01", run);
  EXPECT_EQ(run.fate, Fate::silent);
  EXPECT_NE(run.state.find("no process has it open"), std::string::npos) << run.state;
  const int held = ::open(log.c_str(), O_WRONLY | O_APPEND);
  ASSERT_EQ(::flock(held, LOCK_EX | LOCK_NB), 0);
  judge_open_end(log, "2026-11-22 04:00:01", run);
  EXPECT_EQ(run.fate, Fate::running);
  EXPECT_EQ(run.state.find("hanging"), std::string::npos) << run.state;
  judge_open_end(log, "2026-11-22 05:00:00", run);
  EXPECT_NE(run.state.find("1h 00m ago: it may be hanging"), std::string::npos) << run.state;
  ::close(held);
}

TEST_F(RunReading, AnErrorEndsARunUntilItStartsAgain) {
  put("metrics.jsonl", "{\"step\":10,\"loss\":1}\n");
  const std::string failed =
      "[2026-11-22 04:00:00.000][I] ready after 1.0 s\n"
      "[2026-11-22 04:00:01.000][E] ended with exit code 4: step 11: the loss is nan\n";
  put("log.txt", failed);
  ReportedRun run = read_run(folder_.string());
  EXPECT_EQ(run.fate, Fate::failed);
  EXPECT_EQ(run.state.find("Ended with exit code 4: step 11: the loss is nan."), 0u) << run.state;
  EXPECT_EQ(run.events.back().kind, EventKind::failure);
  EXPECT_EQ(run.events.back().step, 11);
  put("log.txt", failed + "[2026-11-22 04:10:00.000][I] ready after 1.0 s\nsummary:\n  steps 20\n");
  run = read_run(folder_.string());
  EXPECT_EQ(run.fate, Fate::finished);
  EXPECT_EQ(run.state, "");
}

TEST_F(RunReading, ARunWhoseLastSaveFailedIsNotSaved) {
  put("metrics.jsonl", "{\"step\":60,\"loss\":1}\n");
  const std::string unsaved =
      "[2026-11-22 04:00:00.000][I] ready after 1.0 s\n"
      "[2026-11-22 04:00:09.000][E] checkpoint of step 60 FAILED: No space left on device\n"
      "summary:\n  steps 60\n"
      "[2026-11-22 04:00:09.100][E] the state after step 60 was not saved: exit code 6; the same "
      "command starts anew\n";
  put("log.txt", unsaved);
  ReportedRun run = read_run(folder_.string());
  EXPECT_EQ(run.fate, Fate::unsaved);
  EXPECT_STREQ(name_of(run.fate), "not saved");
  EXPECT_EQ(run.state.find("The state after step 60 was not saved: exit code 6"), 0u) << run.state;
  put("log.txt",
      unsaved + "[2026-11-22 04:10:00.000][I] ready after 1.0 s\nsummary:\n  steps 60\n");
  EXPECT_EQ(read_run(folder_.string()).fate, Fate::finished);
}

TEST_F(RunReading, ARefusedStartLeavesTheStateOfTheRun) {
  put("metrics.jsonl", "{\"step\":10,\"loss\":1}\n");
  const std::string begun = "[2026-11-22 04:00:00.000][I] ready after 1.0 s\n";
  const std::string refused =
      "[2026-11-22 05:00:01.000][E] ended with exit code 2: the deck is not that of step 10\n";
  put("log.txt", begun + "summary:\n  steps 20\n" + refused);
  ReportedRun run = read_run(folder_.string());
  EXPECT_EQ(run.fate, Fate::finished);
  EXPECT_EQ(run.state, "");
  EXPECT_EQ(run.events.back().kind, EventKind::warning);
  // A run that was killed has no summary; the line of the next start shows where it ended.
  put("log.txt", begun + "choir 1a2b3c: ranks 2 on 1 node\n" + refused);
  EXPECT_EQ(read_run(folder_.string()).fate, Fate::silent);
  // A failure stays one, and its words are not those of the refusal.
  const std::string failed =
      "[2026-11-22 04:00:01.000][E] ended with exit code 4: step 11: the loss is nan\n";
  put("log.txt", begun + failed + "choir 1a2b3c: ranks 2 on 1 node\n" + refused);
  run = read_run(folder_.string());
  EXPECT_EQ(run.fate, Fate::failed);
  EXPECT_EQ(run.state.find("Ended with exit code 4"), 0u) << run.state;
  // Without a run before it, the refusal is all that is known.
  put("log.txt", "choir 1a2b3c: ranks 2 on 1 node\n" + refused);
  EXPECT_EQ(read_run(folder_.string()).fate, Fate::failed);
}

TEST_F(RunReading, WhatIsNotFiniteIsCountedAndLeftOut) {
  put("metrics.jsonl",
      "{\"step\":1,\"loss\":3}\n{\"step\":2,\"loss\":null}\n{\"step\":3,\"loss\":1e999}\n");
  const std::string page = report_page({read_run(folder_.string())}, {});
  EXPECT_NE(page.find("values are not finite and not shown"), std::string::npos);
  for (const char* word : {"nan ", "inf ", "nan,", "inf,"})
    EXPECT_EQ(page.find(word), std::string::npos) << word;
}

TEST_F(RunReading, DamageIsSaid) {
  put("metrics.jsonl", "{\"step\":1,\"loss\":3}\n{\"step\":2,\"lo");
  put("deck.json", "{ cut");
  const ReportedRun run = read_run(folder_.string());
  EXPECT_TRUE(noted(run, "the last line of metrics.jsonl is cut off; used up to step 1"));
  EXPECT_TRUE(noted(run, "deck.json is damaged: not a JSON object"));
  EXPECT_TRUE(noted(run, "log.txt is missing"));
  EXPECT_TRUE(noted(run, "no start record"));
}

TEST_F(RunReading, NoRunDirectory) {
  EXPECT_THROW(read_run(folder_.string()), DataError);
  EXPECT_THROW(read_run((folder_ / "nowhere").string()), DataError);
  put("metrics.jsonl", "");
  EXPECT_TRUE(read_run(folder_.string()).empty());
}

TEST_F(RunReading, WhatUsersWriteIsEscaped) {
  put("metrics.jsonl", "{\"step\":1,\"loss\":3}\n");
  put("deck.json", R"({"run":{"name":"<script>alert(1)</script>"},"device":"a\"b'&"})");
  put("samples/step_00000001.txt", "</pre><img src=x onerror=alert(2)>\n");
  const std::string page = report_page({read_run(folder_.string())}, {});
  EXPECT_EQ(page.find("<script>alert"), std::string::npos);
  EXPECT_EQ(page.find("<script"), page.rfind("<script")) << "the only script is that of the page";
  EXPECT_EQ(page.find("<img"), std::string::npos);
  EXPECT_NE(page.find("&lt;script&gt;alert(1)&lt;/script&gt;"), std::string::npos);
  EXPECT_NE(page.find("&lt;/pre&gt;&lt;img"), std::string::npos);
  for (const char* outside : {"http:", "https:", "src=\"", "@import"})
    EXPECT_EQ(page.find(outside), std::string::npos) << outside;
}

TEST_F(RunReading, KeysOfTheRunThatWereGivenFirst) {
  put("metrics.jsonl", "{\"step\":1,\"loss\":3}\n");
  put("deck.json", R"({"model":{"type":"gpt","n_layer":3,"ffn_width":0,"mels":80,"lora":{"rank":0}},
    "data":{"hints":{"cb_nodes":"4"}},"train":{"ema":0},"fault":{"kill_rank":-1},
    "derived":{"model.ffn_width":512},
    "sources":{"model.type":"file","model.n_layer":"file","model.ffn_width":"derived",
               "model.mels":"default","model.lora.rank":"default","data.hints":"override",
               "train.ema":"default","fault.kill_rank":"default"}})");
  ReportedRun run = read_run(folder_.string());
  EXPECT_EQ(run.deck.at("model.lora.rank").source, "default");
  EXPECT_EQ(run.deck.at("model.ffn_width").value, "512");
  EXPECT_EQ(run.deck.at("data.hints").value, R"({"cb_nodes":"4"})");
  EXPECT_FALSE(run.deck.contains("model.lora"));
  mark_own_keys(test::families(), run);
  EXPECT_FALSE(run.deck.at("model.mels").concerns) << "a key of recognisers";
  EXPECT_FALSE(run.deck.at("fault.kill_rank").concerns) << "this run is no drill";
  EXPECT_TRUE(run.deck.at("train.ema").concerns && run.deck.at("model.lora.rank").concerns);
  const std::string page = deck_section({run});
  EXPECT_EQ(page.find("model.mels"), std::string::npos);
  const std::size_t all = page.find("<details>");
  ASSERT_NE(all, std::string::npos);
  const auto at = [&](const char* key) { return page.find(key, all); };
  EXPECT_LT(at("data.hints"), at("model.ffn_width")) << "given keys come before derived ones";
  EXPECT_LT(at("model.n_layer"), at("model.ffn_width"));
  EXPECT_LT(at("model.ffn_width"), at("model.lora.rank"));
  EXPECT_EQ(page.find("train.ema"), at("train.ema")) << "defaults are not among the given values";
}

TEST_F(RunReading, EqualEvaluationsAreOneRecordAndOthersTwo) {
  const auto line = [](const char* time, const char* source, const char* loss) {
    return std::string(R"({"event":"evaluation","time":")") + time +
           R"(","step":5,"checkpoint":"c","precision":"fp32","task":"","kind":"validation",)" +
           source + R"("tokens":10,"metrics":{"loss":)" + loss + "}}\n";
  };
  put("evaluations.jsonl", line("t1", "", "2.5") + line("t2", "", "2.5") + line("t3", "", "2.75") +
                               line("t4", R"("source":"data.val=[x]",)", "2.5") +
                               line("t5", "", "null") + line("t6", "", "null"));
  const KeptRecords kept = read_records((folder_ / "evaluations.jsonl").string());
  ASSERT_EQ(kept.records.size(), 4u);
  EXPECT_EQ(kept.records[0].time, "t2");
  EXPECT_EQ(kept.records[0].repeats, 1);
  EXPECT_EQ(kept.records[1].time, "t3");
  EXPECT_EQ(kept.records[1].repeats, 0);
  EXPECT_EQ(kept.records[2].source, "data.val=[x]");
  EXPECT_EQ(kept.records[3].time, "t6");
  ReportedRun run;
  run.evaluations = kept.records;
  const std::string page = evaluations_section({run});
  EXPECT_NE(page.find("t2, and 1 earlier time with the same result"), std::string::npos) << page;
  EXPECT_NE(page.find("data.val=[x], t4"), std::string::npos) << page;
}

TEST(EvaluationsSection, NamesAllDataOfTheCommand) {
  ReportedRun run;
  run.evaluations = {
      {.set = "",
       .kind = "validation",
       .source = R"(eval.batches=2 data.val=["a", "b"] data.validation={"c": "d e", "f": {}})",
       .metrics = {{"loss", 1}}}};
  const std::string page = evaluations_section({run});
  EXPECT_NE(page.find("all of a, b, c:d e, f"), std::string::npos) << page;
}

TEST(EvaluationsSection, HasColumnsForTheErrorsOfRecognisers) {
  ReportedRun run;
  run.evaluations = {{.set = "all",
                      .kind = "validation",
                      .conditions = {{"targets", 0},
                                     {"words", 1082},
                                     {"insertions", 2},
                                     {"deletions", 19},
                                     {"substitutions", 63},
                                     {"characters", 407},
                                     {"character_deletions", 101}},
                      .metrics = {{"loss", NAN}, {"wer", 0.25}, {"cer", 0.125}, {"wer/en", 0.5}}}};
  const std::string page = evaluations_section({run});
  EXPECT_NE(page.find("<td class=n>1,082</td><td class=n>2</td><td class=n>19</td>"
                      "<td class=n>63</td><td class=n>25.00 %</td><td class=n>12.50 %</td>"
                      "<td class=n>-</td><td>WER/en 50.00 %</td>"),
            std::string::npos)
      << page;
  EXPECT_EQ(page.find("nan"), std::string::npos) << page;
  EXPECT_EQ(page.find("character_deletions"), std::string::npos) << page;
}

TEST(PhasesSection, AveragesAllSteps) {
  ReportedRun run;
  // The first line has one step; the second has the mean of the 99 steps behind it.
  run.curves["dt"] = {.x = {1, 100}, .y = {0.5, 0.1}};
  run.curves["comm"] = {.x = {1, 100}, .y = {0.3, 0.02}};
  EXPECT_DOUBLE_EQ(run.mean_over_steps("dt"), run.stepping_seconds() / 100);
  EXPECT_EQ(run.mean_over_steps("data"), 0);
  const std::string page = phases_section({run});
  EXPECT_NE(page.find("104 ms a step"), std::string::npos) << page;
  EXPECT_NE(page.find("communication: 22.80 ms, 21.9 %"), std::string::npos) << page;
}

TEST(CurvesSection, NamesThePeakOfEachStart) {
  ReportedRun run;
  run.curves["mfu"] = {.x = {10, 30}, .y = {9, 45}};
  run.starts = {{.mfu_peak = "2.23 TFLOP/s: bf16"}};
  EXPECT_NE(curves_section({run}).find("100 % is 2.23 TFLOP/s: bf16."), std::string::npos);
  run.starts.push_back({.step = 20, .mfu_peak = "0.21 TFLOP/s: f32"});
  EXPECT_NE(curves_section({run}).find("100 % is 2.23 TFLOP/s: bf16 (from step 1); 0.21 TFLOP/s: "
                                       "f32 (from step 21)."),
            std::string::npos);
}

TEST(MemorySection, AddsHostMemoryToThatOfTheDevice) {
  ReportedRun run;
  constexpr double kMiB = 1 << 20;
  run.start.memory = {{"parameters", "device", 18 * kMiB}, {"snapshot", "host", 4 * kMiB}};
  EXPECT_NE(
      memory_section({run}).find("18.0 MiB on the device + 4.0 MiB in host memory = 22.0 MiB"),
      std::string::npos)
      << memory_section({run}).substr(0, 400);
}

TEST(DeckDifferences, AllButPlaceAndName) {
  ReportedRun a, b;
  a.deck = {{"run.dir", {"\"a\"", ""}}, {"train.max_steps", {"5", ""}}, {"run.seed", {"1", ""}}};
  b.deck = {{"run.dir", {"\"b\"", ""}},
            {"train.max_steps", {"6", ""}},
            {"run.seed", {"1", ""}},
            {"log.interval", {"1", ""}}};
  EXPECT_EQ(differing_keys({a, b}), (std::vector<std::string>{"log.interval", "train.max_steps"}));
}

TEST(DeckDifferences, ALostDeckDiffersInNothing) {
  ReportedRun a, lost;
  a.deck = {{"train.max_steps", {"5", ""}}};
  EXPECT_TRUE(differing_keys({a, lost}).empty());
  EXPECT_TRUE(comparison_cautions({a, lost}).empty());
}

TEST(DeckDifferences, OtherDataAndUnitsAreCautioned) {
  ReportedRun a, b;
  a.deck = {{"data.val", {"[\"x\"]", ""}}, {"data.labels", {"\"char\"", ""}}};
  b.deck = {{"data.val", {"[\"y\"]", ""}}, {"data.labels", {"\"bpe\"", ""}}};
  const std::vector<std::string> cautions = comparison_cautions({a, b});
  ASSERT_EQ(cautions.size(), 2u);
  EXPECT_NE(cautions[0].find("(data.val)"), std::string::npos);
  EXPECT_NE(cautions[1].find("(data.labels)"), std::string::npos);
}

TEST(RunningMean, KeepsLinesAndEnds) {
  std::vector<CurveColumn> line;
  for (int i = 0; i < 200; ++i)
    line.push_back({.x = 1.0 * i, .mean = 3.0 * i, .low = 0, .high = 0});
  const std::vector<CurveColumn> means = running_mean(line);
  ASSERT_EQ(means.size(), 200u);
  for (int i = 0; i < 200; ++i) EXPECT_NEAR(means[static_cast<std::size_t>(i)].mean, 3.0 * i, 1e-9);
  line[100].mean += 11;  // loss 5 at n / 40: shared by 11 points
  EXPECT_NEAR(running_mean(line)[103].mean, 3.0 * 103 + 1, 1e-9);
}

TEST(Ticks, AreRoundAndCoverTheRange) {
  EXPECT_EQ(round_ticks(0, 2000, 5), (std::vector<double>{0, 500, 1000, 1500, 2000}));
  EXPECT_EQ(round_ticks(-1, 1, 4), (std::vector<double>{-1, -0.5, 0, 0.5, 1}));
  EXPECT_EQ(tick_text(0.05, 0.05), "0.05");
  EXPECT_EQ(tick_text(1500, 500), "1500");
  EXPECT_EQ(tick_text(15000, 5000), "15k");
  EXPECT_EQ(tick_text(2.5e6, 5e5), "2.5M");
  EXPECT_EQ(tick_text(0.0002, 0.0001), "0.0002");
  EXPECT_EQ(tick_text(0.0005, 0.00025), "0.00050");
  EXPECT_EQ(tick_text(3e17, 3e17), "3e+17");
  EXPECT_EQ(number_text(22213.4), "22,213");
  EXPECT_EQ(number_text(0.17694), "0.1769");
  EXPECT_EQ(number_text(2.831e17), "2.83e+17");
}

TEST(Decimation, KeepsExtremesAndMeans) {
  Curve curve;
  for (int i = 0; i < 100000; ++i) {
    curve.x.push_back(i);
    curve.y.push_back(i == 54321 ? 100 : i % 2);
  }
  const auto columns = decimate(curve, 0, 99999, 400);
  EXPECT_LE(columns.size(), 401u);
  double high = 0, low = 1;
  for (const CurveColumn& c : columns) high = std::max(high, c.high), low = std::min(low, c.low);
  EXPECT_EQ(high, 100);
  EXPECT_EQ(low, 0);
  EXPECT_NEAR(columns[0].mean, 0.5, 1e-2);
}

TEST(Decimation, ShortCurvesStayAsTheyAre) {
  const Curve curve{{1, 2, 3}, {5, NAN, 7}};
  const auto columns = decimate(curve, 1, 3, 400);
  ASSERT_EQ(columns.size(), 2u);
  EXPECT_EQ(columns[1].mean, 7);
}

TEST(Charts, HoldTheirValuesForThePointer) {
  const Chart chart{.title = "loss",
                    .series = {{.label = "a \"b\"", .colour = 2, .curve = {{1, 2}, {3.5, NAN}}},
                               {.label = "c", .curve = {{1, 2}, {1, 2}}}},
                    .from_zero = true,
                    .stacked = true};
  const std::string page = to_html(chart);
  const std::string begin = "data-values=\"";
  const std::size_t at = page.find(begin) + begin.size();
  std::string values = page.substr(at, page.find("\">", at) - at);
  for (std::size_t quote; (quote = values.find("&quot;")) != std::string::npos;)
    values.replace(quote, 6, "\"");
  const auto json = nlohmann::json::parse(values);
  EXPECT_EQ(json.at("x"), nlohmann::json({1, 2}));
  EXPECT_EQ(json.at("series").at(0).at("name"), "a \"b\"");
  EXPECT_EQ(json.at("series").at(0).at("y"), nlohmann::json({3.5})) << "finite values only";
  EXPECT_EQ(json.at("series").at(1).at("y"), nlohmann::json({1, 2})) << "its own, not the sums";
  EXPECT_NE(page_script().find("dataset.values"), std::string::npos);
}

TEST(Charts, WithoutAFiniteValueThereIsNone) {
  EXPECT_EQ(to_html({.title = "empty"}), "");
  EXPECT_EQ(to_html({.title = "nan", .series = {{.label = "a", .curve = {{1}, {NAN}}}}}), "");
  EXPECT_NE(
      to_html({.title = "one", .series = {{.label = "a", .curve = {{1}, {2}}}}}).find("<circle"),
      std::string::npos);
}

constexpr const char* kHeader = "deck,ranks,tok_s,layout,valid\n";

TEST(ScalingTables, OnlyValidRowsAreDrawn) {
  const ScalingTable table = parse_scaling(std::string(kHeader) +
                                               "a,1,100,dp=1,VALID\na,2,150,\"dp=2, zero\",VALID\n"
                                               "a,4,900,dp=4,INVALID\na,8,",
                                           "sweep.csv");
  EXPECT_EQ(table.rows.size(), 3u);
  EXPECT_EQ(table.invalid, 1u);
  EXPECT_EQ(table.damaged, 1u);
  EXPECT_EQ(table.rows[1].text("layout"), "dp=2, zero");
  const std::string page = scaling_section(table);
  EXPECT_NE(page.find("1 of 3 rows are not VALID"), std::string::npos);
  EXPECT_NE(page.find("1 line is not a row"), std::string::npos);
}

TEST(ScalingTables, NoisyRowsAreMarked) {
  const ScalingTable table = parse_scaling(
      "deck,ranks,tok_s,layout,valid,noisy,data_ms,forward_ms\n"
      "a,1,100,dp,VALID,0,1,2\na,2,150,dp,VALID,1,1,2\na,4,300,dp,INVALID,1,1,2\n",
      "sweep.csv");
  EXPECT_EQ(table.noisy, 1u);
  const std::string page = scaling_section(table);
  EXPECT_NE(page.find("1 of 3 rows are NOISY"), std::string::npos);
  EXPECT_NE(page.find("dp on 2 ranks NOISY"), std::string::npos);
  EXPECT_NE(page.find("NOISY: best at 2"), std::string::npos) << page;
  EXPECT_NE(page.find("<tr class=noisy>"), std::string::npos);
  EXPECT_EQ(page.find("dp on 1 rank NOISY"), std::string::npos);
}

TEST(ScalingTables, OlderHeadersBelowNewerOnes) {
  const ScalingTable table = parse_scaling(
      "ranks,tok_s,valid,cpus\n1,100,VALID,\"[\"\"A <1>\"\"]\"\n"
      "valid,ranks,tok_s\nVALID,2,180\nVALID,4,300,\"[]\"\n",
      "both.csv");
  ASSERT_EQ(table.rows.size(), 2u);
  EXPECT_EQ(table.damaged, 1u);
  EXPECT_EQ(table.rows[1].ranks, 2);
  EXPECT_EQ(table.rows[1].rate, 180);
  EXPECT_EQ(table.columns, (std::vector<std::string>{"ranks", "tok_s", "valid", "cpus"}));
  EXPECT_NE(scaling_section(table).find("Measured on A &lt;1&gt;."), std::string::npos);
}

// No two lines have the same classes of path and shape of mark, and each class is in the style.
TEST(ScalingTables, ManyLayoutsCanBeToldApart) {
  std::string text = "sweep,layout,ranks,tok_s,valid\n";
  constexpr int kLayouts = 24;
  for (int layout = 10; layout < 10 + kLayouts; ++layout)
    for (const char* ranks : {"1", "2"})
      text += "weak,tp" + std::to_string(layout) + "," + ranks + ",100,VALID\n";
  const std::string page = scaling_section(parse_scaling(text, "many.csv"));
  const std::string chart = page.substr(0, page.find("Efficiency"));
  std::set<std::string> looks;
  for (std::size_t at = 0; (at = chart.find("<path class=\"l s", at)) != std::string::npos; ++at) {
    const std::size_t end = chart.find('"', at + 13);
    if (chart.substr(at, end - at).ends_with(" d")) continue;  // the ideal
    const std::string key = chart.substr(at + 13, end - at - 13);
    if (chart.compare(end, 10, "\" d=\"M0 6H") == 0)
      continue;  // a sample of the line in the legend
    EXPECT_TRUE(looks.insert(key).second) << key;
    if (const std::size_t round = key.find(" r"); round != std::string::npos) {
      EXPECT_NE(page_style().find("." + key.substr(round + 1) + "{stroke-dasharray"),
                std::string::npos);
    }
  }
  EXPECT_EQ(looks.size(), static_cast<std::size_t>(kLayouts));
  // There are 7 colours: 17 names have a sample of their line before them.
  std::size_t pieces = 0;
  for (std::size_t at = 0; (at = chart.find("d=\"M0 6H34\"", at)) != std::string::npos; ++at)
    ++pieces;
  EXPECT_EQ(pieces, static_cast<std::size_t>(kLayouts - 7));
}

TEST(ScalingTables, WithoutAValidRowThereIsNothingToDraw) {
  EXPECT_THROW(parse_scaling(std::string(kHeader) + "a,1,100,dp=1,INVALID\n", "x"), DataError);
  EXPECT_THROW(parse_scaling("", "x"), DataError);
  EXPECT_THROW(parse_scaling("a,b\n1,2\n", "x"), DataError);
}

}  // namespace
}  // namespace choir::report
