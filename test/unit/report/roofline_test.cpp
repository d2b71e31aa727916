// Tests of the roofline: the roofs and points that follow from rows of `choir bench`, and the
// phases of a step.
#include <gtest/gtest.h>

#include "choir/core/error.hpp"
#include "src/report/report_page.hpp"

namespace choir::report {
namespace {

const std::string kKernelHeader =
    "bench,name,variant,shape,dtype,us,rate,unit,fraction,error,allowed,verdict,calls,device,"
    "threads,revision,date,flops,bytes\n";

// A copy runs at 20 GB/s, of which this norm reaches half; a product at 100 GFLOP/s.
const std::string kOps =
    kKernelHeader +
    "ops,norm,,\"[8, 4]\",f32,10,10,GB/s,0.5,0,1,VALID,0,cpu,1,abc,today,"
    "50000,100000\n"
    "ops,bad,,\"[8, 4]\",f32,10,10,GB/s,0.5,2,1,INVALID,0,cpu,1,abc,today,1,1\n"
    "ops,cast,,\"[8, 4]\",f32,10,10,GB/s,0.5,0,1,VALID,0,cpu,1,abc,today,0,8\n";
const std::string kProducts =
    kKernelHeader +
    "gemm,square,,8 x 8 x 8,f32,20,0.05,TFLOP/s,0.5,0,1,VALID,0,cpu,1,abc,today,1000000,100000\n";

TEST(Roofline, RoofsAreTheCeilingsOfTheRows) {
  const KernelTable ops = parse_kernels(kOps, "ops.csv");
  EXPECT_DOUBLE_EQ(ops.bandwidth, 20e9);
  EXPECT_TRUE(ops.peaks.empty());
  ASSERT_EQ(ops.rows.size(), 1u);
  EXPECT_EQ(ops.left_out, 2u);
  EXPECT_DOUBLE_EQ(ops.rows[0].intensity(), 0.5);
  EXPECT_DOUBLE_EQ(ops.rows[0].rate(), 5e9);
  const KernelTable both = parse_kernels(kOps + kProducts, "all.csv");
  EXPECT_DOUBLE_EQ(both.peaks.at("f32"), 100e9);
  EXPECT_EQ(both.rows.size(), 2u);
}

TEST(Roofline, FilesOfOneMachineAreOneChart) {
  std::vector<KernelTable> tables;
  add_kernels(tables, parse_kernels(kOps, "ops.csv"));
  add_kernels(tables, parse_kernels(kProducts, "gemm.csv"));
  ASSERT_EQ(tables.size(), 1u);
  EXPECT_EQ(tables[0].path, "ops.csv, gemm.csv");
  EXPECT_EQ(tables[0].rows.size(), 2u);
  // The norm has 5 of 0.5 x 20 GFLOP/s, the product 50 of 100.
  const std::string html = roofline_section(tables[0], {});
  EXPECT_NE(html.find("norm [8, 4] f32: 5 GFLOP/s at 0.5 FLOP/byte, 50 % of its roof"),
            std::string::npos)
      << html;
  EXPECT_NE(html.find("square 8 x 8 x 8 f32: 50 GFLOP/s at 10 FLOP/byte, 50 % of its roof"),
            std::string::npos);
  EXPECT_EQ(html.find("phases of a step"), std::string::npos);
  KernelTable card = parse_kernels(kProducts, "h100.csv");
  card.device = "cuda";
  add_kernels(tables, card);
  EXPECT_EQ(tables.size(), 2u);
}

TEST(Roofline, PlacesThePhasesOfAStep) {
  ReportedRun run;
  run.name = "a<b";
  run.start.work = {{"forward", 4e9, 1e9}, {"optimizer", 1e9, 1e10}, {"backward", 0, 0}};
  run.curves["dtf"] = {{1, 2, 3}, {9, 2, 1}};
  const KernelTable table = parse_kernels(kOps + kProducts, "all.csv");
  const std::string html = roofline_section(table, {run});
  EXPECT_NE(html.find("forward of a step of a&lt;b: 2 GFLOP/s at 4 FLOP/byte"), std::string::npos)
      << html;
  EXPECT_EQ(html.find("optimizer of a step"), std::string::npos) << "its time is unknown";
}

TEST(Roofline, RefusesFilesWithoutBytes) {
  const std::string old =
      "bench,name,variant,shape,dtype,us,rate,unit,fraction,error,allowed,verdict,calls,device,"
      "threads,revision,date\n"
      "ops,norm,,\"[8, 4]\",f32,10,10,GB/s,0.5,0,1,VALID,0,cpu,1,abc,today\n";
  try {
    parse_kernels(old, "old.csv");
    FAIL();
  } catch (const DataError& error) {
    EXPECT_NE(std::string(error.what()).find("old.csv: none of its 1 rows"), std::string::npos);
  }
}

}  // namespace
}  // namespace choir::report
