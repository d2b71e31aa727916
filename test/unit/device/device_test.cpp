#include "choir/device/device.hpp"

#include <gtest/gtest.h>

#include <vector>

#include "choir/core/error.hpp"
#include "src/device/cpu_device.hpp"
#include "src/device/null_device.hpp"

namespace choir {
namespace {

TEST(CpuDevice, ZeroesAndCopiesAcrossChunkBorders) {
  CpuDevice device;
  // Sizes above and below the one from which all threads take part, and not multiples of it.
  for (const std::size_t bytes : {std::size_t{1}, std::size_t{4097}, (std::size_t{3} << 20) + 17}) {
    Buffer a(device, bytes), b(device, bytes);
    std::vector<unsigned char> host(bytes), back(bytes);
    for (std::size_t i = 0; i < bytes; ++i) host[i] = static_cast<unsigned char>(i * 31 + i / 251);
    device.copy_from_host(a.data(), host.data(), bytes);
    device.copy(b.data(), a.data(), bytes);
    device.copy_to_host(back.data(), b.data(), bytes);
    EXPECT_EQ(back, host);
    device.zero(b.data(), bytes);
    device.copy_to_host(back.data(), b.data(), bytes);
    EXPECT_EQ(back, std::vector<unsigned char>(bytes, 0));
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(a.data()) % 64, 0u);
  }
}

TEST(CpuDevice, SaysHowMuchWasAskedForWhenMemoryIsShort) {
  CpuDevice device;
  try {
    Buffer huge(device, std::size_t{1} << 60);
    FAIL();
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("1048576.0 TiB"), std::string::npos) << error.what();
    EXPECT_FALSE(error.hint().empty());
  }
}

TEST(NullDevice, HandsOutDistinctAddressesAndCounts) {
  NullDevice device;
  {
    const Buffer a(device, 1000), b(device, std::size_t{1} << 50);
    const auto first = reinterpret_cast<std::uintptr_t>(a.data());
    const auto second = reinterpret_cast<std::uintptr_t>(b.data());
    EXPECT_GE(second, first + 1000);
    EXPECT_EQ(device.live_bytes(), 1000u + (std::size_t{1} << 50));
    device.zero(b.data(), b.bytes());  // nothing is touched
  }
  EXPECT_EQ(device.live_bytes(), 0u);
}

TEST(Buffer, MovesItsOwnership) {
  NullDevice device;
  Buffer a(device, 10);
  void* const address = a.data();
  Buffer b = std::move(a);
  EXPECT_EQ(b.data(), address);
  EXPECT_EQ(a.data(), nullptr);
  b = Buffer(device, 20);
  EXPECT_EQ(device.live_bytes(), 20u);
  const Buffer none(device, 0);
  EXPECT_EQ(none.data(), nullptr);
}

TEST(Device, CudaIsRefusedByName) {
  EXPECT_EQ(make_device(DeviceKind::cpu)->kind(), DeviceKind::cpu);
  EXPECT_EQ(make_device(DeviceKind::null)->kind(), DeviceKind::null);
  try {
    make_device(DeviceKind::cuda);
    FAIL();
  } catch (const DeckError& error) {
    EXPECT_NE(std::string(error.what()).find("'cuda'"), std::string::npos);
  }
}

TEST(PlanCache, KeepsOneObjectPerType) {
  CpuDevice device;
  int& number = device.plans().get<int>();
  number = 7;
  device.plans().get<double>() = 2;
  EXPECT_EQ(&device.plans().get<int>(), &number);
  EXPECT_EQ(device.plans().get<int>(), 7);
  CpuDevice other;
  EXPECT_EQ(other.plans().get<int>(), 0);
}

TEST(Stream, CountsWorkWhenAsked) {
  CpuDevice device;
  WorkCounter counter;
  const Stream counting(device, &counter), silent(device);
  counting.count(10, 4);
  counting.count(5, 4);
  silent.count(100, 100);
  EXPECT_EQ(counter.flops, 15);
  EXPECT_EQ(counter.bytes, 8);
}

}  // namespace
}  // namespace choir
