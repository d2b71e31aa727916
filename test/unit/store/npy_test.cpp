#include "src/store/npy.hpp"

#include <gtest/gtest.h>

#include "test/unit/store/weights_fixture.hpp"

namespace choir {
namespace {

using test::bytes_of;
using test::WeightsFolder;

// An array of zeros and ones of this shape, in the bytes of numpy.save.
std::string expected(const std::string& dict, const std::string& data) {
  std::string header = dict + std::string(127 - 10 - dict.size(), ' ') + "\n";
  return std::string("\x93NUMPY\x01\0\x76\0", 10) + header + data;
}

TEST(Npy, WritesTheBytesOfNumpy) {
  const WeightsFolder folder;
  std::vector<float> floats{0, 1, 2, 3, 4, 5};
  std::vector<double> doubles{0.5, -1};
  write_npy(folder.file("a.npy"), {floats.data(), DType::f32, {2, 3}});
  EXPECT_EQ(
      folder.bytes("a.npy"),
      expected("{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), }", bytes_of(floats)));
  write_npy(folder.file("a.npy"), {doubles.data(), DType::f64, {2}});
  EXPECT_EQ(
      folder.bytes("a.npy"),
      expected("{'descr': '<f8', 'fortran_order': False, 'shape': (2,), }", bytes_of(doubles)));
  write_npy(folder.file("a.npy"), {floats.data() + 1, DType::f32, {}});
  EXPECT_EQ(folder.bytes("a.npy"),
            expected("{'descr': '<f4', 'fortran_order': False, 'shape': (), }", bytes_of(1.0f)));
  std::vector<std::uint16_t> codes{1, 65535};
  write_npy(folder.file("a.npy"), {codes.data(), DType::u16, {2, 1}});
  EXPECT_EQ(
      folder.bytes("a.npy"),
      expected("{'descr': '<u2', 'fortran_order': False, 'shape': (2, 1), }", bytes_of(codes)));
  EXPECT_EQ(read_npy(folder.file("a.npy")).values, (std::vector<double>{1, 65535}));
  EXPECT_EQ(folder.names(), std::vector<std::string>{"a.npy"});
}

TEST(Npy, SaysWhatTheDiskRefused) {
  float one = 1;
  EXPECT_SAYS(test::refusal([&] {
                write_npy("/dev/null/a.npy", {&one, DType::f32, {1}});
              }),
              "/dev/null/a.npy");
}

}  // namespace
}  // namespace choir
