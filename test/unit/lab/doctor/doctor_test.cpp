#include "src/lab/doctor/doctor.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>

namespace choir {
namespace {

RankFacts rank_on(int rank, int node, std::vector<int> cores, int threads) {
  return {rank, rank, node, "host" + std::to_string(node), std::move(cores), threads};
}

int count_of(const std::vector<Finding>& findings, Health health) {
  int count = 0;
  for (const Finding& f : findings) count += f.health == health;
  return count;
}

// A library that is there is not to be installed, nor one that the processor cannot use.
TEST(Doctor, AdviceAboutBf16CanWork) {
  EXPECT_NE(bf16_advice(false, true).find("install libdnnl-dev"), std::string::npos);
  for (const bool has_library : {true, false}) {
    const std::string text = bf16_advice(has_library, false);
    EXPECT_EQ(text.find("install"), std::string::npos) << text;
    EXPECT_NE(text.find("train.precision=fp32"), std::string::npos) << text;
  }
}

TEST(Doctor, ListsCores) {
  EXPECT_EQ(core_list({}), "");
  EXPECT_EQ(core_list({3}), "3");
  EXPECT_EQ(core_list({0, 1, 2, 5, 7, 8}), "0-2,5,7-8");
}

TEST(Doctor, RanksOnTheirOwnCoresAreWell) {
  const auto findings = judge_binding({rank_on(0, 0, {0, 1}, 2), rank_on(1, 0, {2, 3}, 2)});
  EXPECT_EQ(findings.size(), 2u);
  EXPECT_EQ(count_of(findings, Health::ok), 2);
  EXPECT_NE(findings[1].text.find("2 threads on 2 cores (2-3)"), std::string::npos)
      << findings[1].text;
}

TEST(Doctor, TheSameCoresOnTwoHostsAreNotShared) {
  const auto findings = judge_binding({rank_on(0, 0, {0, 1}, 2), rank_on(1, 1, {0, 1}, 2)});
  EXPECT_EQ(count_of(findings, Health::ok), 2);
}

TEST(Doctor, SharedCoresAreAWarning) {
  const auto enough = judge_binding({rank_on(0, 0, {0, 1}, 1), rank_on(1, 0, {0, 1}, 1)});
  ASSERT_EQ(enough.size(), 1u);
  EXPECT_EQ(enough[0].health, Health::warning);
  EXPECT_NE(enough[0].text.find("enough cores, not pinned"), std::string::npos) << enough[0].text;
  EXPECT_FALSE(enough[0].remedy.empty());

  const auto crowded = judge_binding({rank_on(0, 0, {0, 1}, 2), rank_on(1, 0, {0, 1}, 2)});
  ASSERT_EQ(crowded.size(), 1u);
  EXPECT_NE(crowded[0].text.find("ranks 0-1 on host0: 4 threads on 2 cores (0-1)"),
            std::string::npos)
      << crowded[0].text;
  EXPECT_NE(crowded[0].remedy.find("OMP_NUM_THREADS=1"), std::string::npos) << crowded[0].remedy;
}

TEST(Doctor, OverlapsAreFollowedFromRankToRank) {
  // Ranks 0 and 2 have no core in common, but rank 1 shares one with each.
  const auto findings = judge_binding({rank_on(0, 0, {0, 1}, 2), rank_on(1, 0, {1, 2}, 2),
                                       rank_on(2, 0, {2, 3}, 2), rank_on(3, 0, {4}, 1)});
  ASSERT_EQ(findings.size(), 2u);
  EXPECT_NE(findings[0].text.find("ranks 0-2"), std::string::npos) << findings[0].text;
  EXPECT_NE(findings[0].text.find("6 threads on 4 cores"), std::string::npos) << findings[0].text;
  EXPECT_EQ(findings[1].health, Health::ok);
}

TEST(Doctor, MoreThreadsThanCoresIsAWarning) {
  const auto findings = judge_binding({rank_on(0, 0, {0}, 8)});
  ASSERT_EQ(findings.size(), 1u);
  EXPECT_EQ(findings[0].health, Health::warning);
  EXPECT_NE(findings[0].remedy.find("OMP_NUM_THREADS=1"), std::string::npos);
}

TEST(Doctor, UnequalHostsAreAWarning) {
  EXPECT_EQ(judge_ranks({rank_on(0, 0, {0}, 1), rank_on(1, 1, {0}, 1)}).health, Health::ok);
  const Finding uneven =
      judge_ranks({rank_on(0, 0, {0}, 1), rank_on(1, 0, {1}, 1), rank_on(2, 1, {0}, 1)});
  EXPECT_EQ(uneven.health, Health::warning);
  EXPECT_NE(uneven.text.find("3 ranks on 2 hosts: host0 (2), host1 (1)"), std::string::npos)
      << uneven.text;
}

TEST(Doctor, AnotherMpiThanCompiledIsAnError) {
  EXPECT_EQ(judge_mpi("Open MPI 4.1.4", "Open MPI v4.1.4, package: Debian").health, Health::ok);
  EXPECT_EQ(judge_mpi("Open MPI 4.1.4", "Open MPI v4.1.6, package: Debian").health, Health::ok);
  EXPECT_EQ(judge_mpi("Open MPI 4.1.4", "Open MPI v5.0.1, package: site").health, Health::error);
  EXPECT_EQ(judge_mpi("MPICH 4.0.2", "Open MPI v4.1.4").health, Health::error);
  EXPECT_EQ(judge_mpi("MPICH 4.0.2", "MPICH Version:      4.0.2").health, Health::ok);
}

TEST(Doctor, ThePthreadFlavourOfOpenBlasIsAWarning) {
  EXPECT_EQ(judge_blas(0, "OpenBLAS 0.3.21", true).health, Health::ok);
  EXPECT_EQ(judge_blas(1, "OpenBLAS 0.3.21", true).health, Health::warning);
  EXPECT_EQ(judge_blas(2, "OpenBLAS 0.3.21", true).health, Health::ok);
  EXPECT_EQ(judge_blas(std::nullopt, "", true).health, Health::ok);
}

TEST(Doctor, KernelsOfOpenBlasForOldProcessorsAreAWarningOnNewOnes) {
  const std::string config = "OpenBLAS 0.3.21 DYNAMIC_ARCH USE_OPENMP Prescott MAX_THREADS=64";
  const Finding old = judge_blas(2, config, true);
  EXPECT_EQ(old.health, Health::warning);
  EXPECT_NE(old.remedy.find("OPENBLAS_CORETYPE"), std::string::npos);
  EXPECT_EQ(judge_blas(2, config, false).health, Health::ok) << "an old processor";
  EXPECT_EQ(judge_blas(2, "OpenBLAS 0.3.21 SkylakeX", true).health, Health::ok);
}

/// Two cores at 2.5 GHz: 0.08 TFLOP/s in f64, 0.16 in f32 and 10 GB/s are 100 %.
SpeedFacts usual_speed() {
  return {.f64 = 0.08e12,
          .f32 = 0.16e12,
          .bf16 = 0.32e12,
          .libraries = {"BLAS", "oneDNN", "oneDNN"},
          .copy = 10e9,
          .cores = 2,
          .clock = 2.5e9};
}

TEST(Doctor, SpeedIsJudgedByWhatSuchCoresShouldDo) {
  const auto products = [](const SpeedFacts& facts) { return judge_speed(facts).at(0); };
  const auto memory = [](const SpeedFacts& facts) { return judge_speed(facts).at(1); };
  const SpeedFacts usual = usual_speed();
  EXPECT_EQ(products(usual).health, Health::ok);
  EXPECT_NE(products(usual).text.find("f32 0.160 TFLOP/s (oneDNN, 100 %), bf16 0.320 TFLOP/s "
                                      "(oneDNN, 2.00 x f32)"),
            std::string::npos)
      << products(usual).text;
  EXPECT_EQ(memory(usual).health, Health::ok);
  EXPECT_NE(memory(usual).text.find("10.0 GB/s copy (read + written)"), std::string::npos)
      << memory(usual).text;

  EXPECT_NE(products(usual).remedy.find("train.precision=bf16-mixed here: bf16 is multiplied "
                                        "about 2 times faster"),
            std::string::npos)
      << products(usual).remedy;
  SpeedFacts equal = usual;
  equal.bf16 = 1.2 * equal.f32;
  EXPECT_EQ(products(equal).remedy, "");

  SpeedFacts slow = usual;
  slow.f64 = 0.03e12;
  EXPECT_EQ(products(slow).health, Health::warning);
  EXPECT_NE(products(slow).remedy.find("OPENBLAS_CORETYPE"), std::string::npos);
  slow.f32 = 0.06e12;
  EXPECT_NE(products(slow).text.find("f32 is slow"), std::string::npos);
  slow.busy = 0.4;
  EXPECT_EQ(products(slow).health, Health::info) << "others computed meanwhile";
  slow.clock = 0;
  EXPECT_EQ(products(slow).health, Health::ok) << "without a clock there is no judgement";
  slow = usual;
  slow.avx2 = false;
  slow.f64 = 0.02e12;
  EXPECT_EQ(products(slow).health, Health::ok) << "an old processor does no more";

  // Facts that no user can change.
  SpeedFacts small = usual;
  small.bf16 = 0.1e12;
  EXPECT_EQ(products(small).health, Health::info);
  EXPECT_NE(products(small).text.find("train in fp32 here"), std::string::npos);
  small.copy = 4e9;
  EXPECT_EQ(memory(small).health, Health::info);
  EXPECT_NE(to_text(judge_speed(small)).find("INFO     products"), std::string::npos);
  EXPECT_FALSE(has_error(judge_speed(small)));
  small.cores = 64;
  small.copy = 50e9;
  EXPECT_EQ(memory(small).health, Health::ok) << "8 cores copy as much as 64";
}

TEST(Doctor, ReductionsAreJudgedByMemoryOrNetwork) {
  const Finding node = judge_all_reduce(10e9, 2, 1, 60e9, 0, 0);
  EXPECT_EQ(node.health, Health::ok);
  EXPECT_NE(node.text.find("10.00 GB/s bus bandwidth (100 % of the memory limit)"),
            std::string::npos)
      << node.text;
  EXPECT_EQ(judge_all_reduce(2e9, 2, 1, 60e9, 0, 0).health, Health::warning);
  EXPECT_EQ(judge_all_reduce(2e9, 2, 1, 60e9, 0, 0.5).health, Health::info) << "others compute";
  EXPECT_EQ(judge_all_reduce(10e9, 8, 2, 60e9, 12.5e9, 0).health, Health::ok);
  const Finding slow = judge_all_reduce(1e9, 8, 2, 60e9, 12.5e9, 0);
  EXPECT_EQ(slow.health, Health::warning);
  EXPECT_NE(slow.text.find("8 % of the network"), std::string::npos) << slow.text;
  EXPECT_EQ(judge_all_reduce(1e9, 8, 2, 60e9, 0, 0).health, Health::ok) << "its rate is not known";
}

TEST(Doctor, StorageThatIsFullSlowOrVolatileIsAWarning) {
  EXPECT_EQ(judge_file_system("runs", "ext4", 1e12, 0.002).health, Health::ok);
  EXPECT_EQ(judge_file_system("runs", "ext4", 1e8, 0.002).health, Health::warning);
  EXPECT_EQ(judge_file_system("runs", "tmpfs", 1e12, 1e-6).health, Health::warning);
  EXPECT_EQ(judge_file_system("runs", "nfs", 1e12, 0.01).health, Health::warning);
  EXPECT_EQ(judge_file_system("runs", "lustre", 1e12, 2).health, Health::warning);
}

TEST(Doctor, SharedMemoryOfDeadRanksIsCountedAndCanBeRemoved) {
  const std::string dead = "/dev/shm/vader_segment.host.0.a1.",
                    alive = "/dev/shm/sm_segment.host.0.b2.";
  EXPECT_EQ(judge_shared_memory({}, {}, 0).health, Health::ok);
  EXPECT_EQ(judge_shared_memory({alive + "0", alive + "1"}, {alive + "1"}, 0).health, Health::ok);
  const Finding finding =
      judge_shared_memory({dead + "0", dead + "1", alive + "0"}, {alive + "0"}, 8 << 20);
  EXPECT_EQ(finding.health, Health::warning);
  EXPECT_NE(finding.text.find("2 segments"), std::string::npos) << finding.text;
  EXPECT_EQ(finding.remedy, "rm " + dead + "*");
}

TEST(Doctor, TheCommandThatRemovesManySegmentsIsShort) {
  std::vector<std::string> segments;
  for (const char* job : {"a1", "b2", "c3", "d4", "e5"})
    segments.push_back(std::string("/dev/shm/vader_segment.host.0.") + job + ".0");
  EXPECT_EQ(judge_shared_memory(segments, {}, 0).remedy,
            "before another job starts: rm /dev/shm/vader_segment.host.0.*");
  // A living job has the same beginning: only patterns of dead ones are named.
  const Finding beside = judge_shared_memory(segments, {segments[2]}, 0);
  EXPECT_EQ(beside.remedy,
            "rm /dev/shm/vader_segment.host.0.a1.* /dev/shm/vader_segment.host.0.b2.* "
            "/dev/shm/vader_segment.host.0.d4.*  # and choir doctor again for the other 1 job");
}

TEST(Doctor, ClocksFarApartAreAWarning) {
  EXPECT_EQ(judge_clocks({0}).health, Health::ok);
  EXPECT_EQ(judge_clocks({0, 0.2, -0.9}).health, Health::ok);
  const Finding finding = judge_clocks({0, 0.2, -3.5, 1});
  EXPECT_EQ(finding.health, Health::warning);
  EXPECT_NE(finding.text.find("rank 2: -3.5"), std::string::npos) << finding.text;
}

TEST(Doctor, AModelMustLearnAndRanksMustAgree) {
  EXPECT_EQ(judge_training({4.0, 2.0}, {1, 1, 1}, 1).health, Health::ok);
  EXPECT_EQ(judge_training({4.0, 3.5}, {1, 1, 1}, 1).health, Health::error);
  EXPECT_EQ(judge_training({4.0, std::numeric_limits<double>::quiet_NaN()}, {1}, 1).health,
            Health::error);
  const Finding split = judge_training({4.0, 2.0}, {1, 1, 2, 1}, 1);
  EXPECT_EQ(split.health, Health::error);
  EXPECT_NE(split.text.find("the weights of ranks 2 differ"), std::string::npos) << split.text;
}

TEST(Doctor, ReportsCountWhatIsWrong) {
  const std::vector<Finding> findings{{Health::ok, "a", "fine", ""},
                                      {Health::warning, "b", "odd", "mend it"},
                                      {Health::error, "c", "bad", "stop"}};
  const std::string text = to_text(findings);
  EXPECT_NE(text.find("WARNING  b"), std::string::npos) << text;
  EXPECT_NE(text.find("-> mend it"), std::string::npos) << text;
  EXPECT_TRUE(text.starts_with("1 error, 1 warning\n")) << text;
  EXPECT_TRUE(has_error(findings));
  const auto json = nlohmann::json::parse(to_json(findings, {rank_on(0, 0, {0, 1}, 2)}));
  EXPECT_EQ(json.at("errors"), 1);
  EXPECT_EQ(json.at("findings").at(2).at("health"), "ERROR");
  EXPECT_EQ(json.at("ranks").at(0).at("cores"), std::vector<int>({0, 1}));
}

TEST(Doctor, GpusAndTheirLibraries) {
  const std::vector<GpuLibrary> libraries{
      {.name = "cuDNN", .version = "9.19.0", .reason = {}, .without = {}},
      {.name = "NCCL", .version = {}, .reason = "libnccl.so.2: no such file", .without = "slow"}};
  cuda::Availability found{
      .cards = {}, .reason = "no driver", .hint = "get one", .driver = {}, .toolkit = "13.0"};
  auto findings = judge_gpus(found, 0, libraries);
  EXPECT_FALSE(has_error(findings));
  for (const Finding& finding : findings) EXPECT_EQ(finding.health, Health::ok) << finding.text;
  EXPECT_EQ(findings[0].text, "none: no driver; built with CUDA 13.0");

  // Device files exist, but CUDA does not start: this must be reported.
  findings = judge_gpus(found, 4, {});
  EXPECT_EQ(findings[0].health, Health::warning);
  EXPECT_EQ(findings[0].remedy, "get one");

  found = {.cards = {{.ordinal = 0,
                      .name = "NVIDIA H200",
                      .uuid = "GPU-12",
                      .pci = "0000:3b:00.0",
                      .numa_node = 1,
                      .major = 9,
                      .minor = 0,
                      .multiprocessors = 132,
                      .peak_bf16_flops = 989e12,
                      .memory = std::size_t{141} << 30}},
           .reason = {},
           .hint = {},
           .driver = "13.1",
           .toolkit = "13.0"};
  findings = judge_gpus(found, 1, libraries);
  ASSERT_EQ(findings.size(), 4u);
  EXPECT_EQ(findings[0].text, "1; driver for CUDA 13.1; built with CUDA 13.0");
  for (const char* part :
       {"NVIDIA H200", "sm_90", "GPU-12", "0000:3b:00.0", "NUMA node 1", "peak 989 TFLOP/s"})
    EXPECT_NE(findings[1].text.find(part), std::string::npos) << findings[1].text;
  EXPECT_EQ(findings[2].health, Health::ok);
  EXPECT_EQ(findings[3].health, Health::warning) << "a GPU without NCCL";
  EXPECT_EQ(findings[3].text, "libnccl.so.2: no such file: slow");
}

TEST(Doctor, PathsBetweenGpusThatAreSlowAreNamed) {
  const auto texts = [](const GpuLinkFacts& facts) {
    std::string all;
    for (const Finding& finding : judge_gpu_links(facts)) {
      EXPECT_EQ(finding.health, Health::warning);
      EXPECT_FALSE(finding.remedy.empty());
      all += finding.text + " -> " + finding.remedy + "\n";
    }
    return all;
  };
  const auto expect = [&](const GpuLinkFacts& facts, const std::string& part) {
    const std::string text = texts(facts);
    EXPECT_NE(text.find(part), std::string::npos) << part << " in " << text;
  };
  const std::vector<Finding> well = judge_gpu_links({.environment = {{"NCCL_DEBUG", "WARN"}}});
  ASSERT_EQ(well.size(), 1u);
  EXPECT_EQ(well[0].health, Health::ok);

  expect(
      {.isolation = "node7: each of 8 ranks sees only its own GPU", .denied = {"/dev/nvidia1"}},
      "sees only its own GPU; the system denies access to /dev/nvidia1 -> request GPUs per node");
  expect({.apart = {"0-1", "0-2", "0-3", "1-2", "1-3"}},
         "no P2P between GPUs 0-1, 0-2, 0-3, 1-2 "
         "and 1 more");
  expect({.slices = {"NVIDIA A100 MIG 1g.5gb"}}, "A100 MIG 1g.5gb (MIG): slices have no P2P");
  expect({.translated = {"0000:3b:00.0"}, .cards = 2},
         "the IOMMU translates accesses of "
         "0000:3b:00.0");
  EXPECT_EQ(judge_gpu_links({.translated = {"0000:3b:00.0"}})[0].health, Health::ok) << "one card";
  expect({.infiniband = true}, "no GPUDirect RDMA");
  EXPECT_EQ(judge_gpu_links({.infiniband = true, .gpu_direct = true})[0].health, Health::ok);
  const std::map<std::string, std::string> harmful{
      {"NCCL_P2P_DISABLE", "1"},   {"NCCL_P2P_LEVEL", "LOC"},   {"NCCL_NET", "Socket"},
      {"NCCL_CUMEM_ENABLE", "0"},  {"NCCL_MAX_NCHANNELS", "2"}, {"NCCL_BUFFSIZE", "1048576"},
      {"NCCL_PROTO", "LL"},        {"NCCL_DEBUG", "TRACE"},     {"NCCL_SHM_DISABLE", "1"},
      {"NCCL_GRAPH_REGISTER", "0"}};
  for (const auto& [name, value] : harmful)
    expect({.environment = {{name, value}}}, name + "=" + value + ": ");
  EXPECT_EQ(judge_gpu_links({.environment = {{"NCCL_P2P_DISABLE", "0"},
                                             {"NCCL_P2P_LEVEL", "NVL"},
                                             {"NCCL_NET", "AWS Libfabric"},
                                             {"NCCL_BUFFSIZE", "4194304"},
                                             {"NCCL_MAX_NCHANNELS", "32"}}})[0]
                .health,
            Health::ok);
}

TEST(Doctor, PathsBetweenGpusAreReadFromTheSystem) {
  const std::string root = testing::TempDir() + "gpu_links";
  const auto write = [&](const std::string& path, const std::string& text) {
    const std::filesystem::path file = root + path;
    std::filesystem::create_directories(file.parent_path());
    std::ofstream(file) << text;
  };
  cuda::Availability found{.cards = {{.name = "NVIDIA H100", .pci = "0000:3B:00.0"},
                                     {.name = "NVIDIA A100 MIG 1g.5gb", .pci = "0000:86:00.0"}},
                           .reason = {},
                           .hint = {},
                           .driver = {},
                           .toolkit = {}};
  GpuLinkFacts facts = gpu_link_facts(found, root);
  EXPECT_TRUE(facts.denied.empty() && facts.translated.empty());
  EXPECT_FALSE(facts.infiniband || facts.gpu_direct);
  EXPECT_EQ(facts.slices, (std::vector<std::string>{"NVIDIA A100 MIG 1g.5gb"}));
  write("/sys/bus/pci/devices/0000:3b:00.0/iommu_group/type", "DMA-FQ\n");
  write("/sys/bus/pci/devices/0000:86:00.0/iommu_group/type", "identity\n");
  write("/sys/class/infiniband/mlx5_0/node_type", "1: CA\n");
  write("/proc/modules", "nvidia 1 0\n");
  facts = gpu_link_facts(found, root);
  EXPECT_EQ(facts.translated, (std::vector<std::string>{"0000:3B:00.0"}));
  EXPECT_TRUE(facts.infiniband);
  EXPECT_FALSE(facts.gpu_direct);
  write("/proc/modules", "nvidia 1 0\nnvidia_peermem 16384 0\n");
  EXPECT_TRUE(gpu_link_facts(found, root).gpu_direct);
  write("/proc/modules", "");
  write("/proc/driver/nvidia/version", "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64\n");
  EXPECT_TRUE(gpu_link_facts(found, root).gpu_direct);
}

TEST(Doctor, NamesTheJobFileThatFits) {
  const auto file = [](const BatchFacts& facts) {
    const std::string text = judge_batch_system(facts).text;
    const auto at = text.find("jobs/");
    return text.substr(at, text.find_first_of(" ;,", at) - at);
  };
  EXPECT_EQ(file({.nersc_host = "perlmutter", .host = "login07", .slurm = true}),
            "jobs/perlmutter.slurm");
  EXPECT_EQ(file({.host = "polaris-login-02 x3005c0s7b0n0", .pbs = true}), "jobs/polaris.pbs");
  EXPECT_EQ(file({.host = "node17", .pbs = true}), "jobs/generic.pbs");
  EXPECT_EQ(file({.host = "node17", .slurm = true}), "jobs/generic.slurm");
  EXPECT_EQ(file({.host = "laptop"}), "jobs/local.sh");
}

}  // namespace
}  // namespace choir
