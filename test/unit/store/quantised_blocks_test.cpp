#include "src/store/quantised_blocks.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>

#include "src/core/hash.hpp"
#include "test/unit/store/weights_fixture.hpp"

namespace choir {
namespace {

using test::from_hex;
using Floats = std::vector<float>;

Floats decoded(const std::string& bytes, Encoding encoding, std::int64_t count) {
  Floats to(static_cast<std::size_t>(count));
  decode_blocks(reinterpret_cast<const std::byte*>(bytes.data()), encoding, count, to.data());
  return to;
}

std::string encoded(const Floats& from, Encoding encoding, std::int64_t expected = -1) {
  const std::int64_t count = std::ssize(from);
  std::string to(static_cast<std::size_t>(encoded_bytes(encoding, count)), '\0');
  EXPECT_EQ(encode_blocks(from.data(), count, reinterpret_cast<std::byte*>(to.data()), encoding),
            expected);
  return to;
}

/// Two blocks with the CRC-32C of the f32 that the gguf package decodes from them, and the second
/// and the last of these.
struct Golden {
  Encoding encoding;
  std::uint32_t crc;
  float second, last;
  const char* blocks;
};
constexpr Golden kGoldens[] = {
    {Encoding::q8_0, 0x5985290cu, -0.9638671875f, -3.313232421875f,
     "b62791e08377acfb7d80d3666d95a6bce73383e8a3ca5f0bd1074c321d0c3ed349522c29f96781a08717ab4027f9"
     "9379c63ec645879164ab283f9c0218b92f9c320055ae"},
    {Encoding::q4_0, 0x9b3bb86bu, -0.0718841552734375f, -0.0791473388671875f,
     "42219cc1fd37d9023d1fa2ad52870ab86856c12668c0c454bd1530840ee6deee653db65d"},
    {Encoding::q4_1, 0x13d45225u, 0.16290760040283203f, -0.2113170623779297f,
     "ef216a11e02e54316d870ab168cacabdc84690ff27a34697827fcfc4391b5ea86033b54a6d345efb"},
    {Encoding::q5_0, 0x0b3b7f69u, 0.21320343017578125f, 0.030946731567382812f,
     "4723234d7e5413efe94095e5a799107d4ee05fb40c57c399c8f38314f10f4a40fd3a40cea440db0b40f5b65f"},
    {Encoding::q5_1, 0xeba699f9u, -0.2249908447265625f, 0.46189117431640625f,
     "0ca521a721c03bb0752a6e176761d8e359332e9e2592c3cdd923caa2a90fda8048137e66a301a4e300721e093b5b"
     "ccfd"},
    {Encoding::q2_k, 0x97db3a6eu, -1.29376220703125f, 0.359130859375f,
     "cb850c8300277570159c8f12f0e502a2737aebe5b93dee9c06d99f86ad9c23b8467da8ce97c30282375d49c80089"
     "185538c29ea79fa40d9b1b2e9b9bca3af3b23a1333b458e0237ed2f75463e82f1642afaa302267d1eacf74445083"
     "7c8df72f1687d5bdc9747f09094361ffbc6076ed799c42483ae6dad1889e7b6bc43e87018fbfec6dbde2383a6a9c"
     "c22b700ffb037148a89ba1f257b256cb7a6b04ae3fa5f98351de9420c093"},
    {Encoding::q3_k, 0x23473f60u, -0.0f, -0.0f,
     "d9b1d56aab2285f5239d92a9612d1e405885425499361517cb384ab495294c5778485727864dc5129fcb40dad00c"
     "e775df69fabef0b27e48a4cc1d2a05b2a5ecb848fc26c5b4cee947d0a4e437f2e1ecc15b8731a212e48200ebb41b"
     "2ca4e00de0857e5a93aee838f54d9bfb661ea261ce710be8a50dd57779503d0de4a4945dd1644f03706cd005b4f1"
     "b94ae495cf3d21fa5f00c7d3ca56cb64e34c67e9baf88590ede68b3aaa0001486f52554c333349fe10d6e66fd1af"
     "b9b41ccf68f6c27548e71194706c034b914c2b0b7708b3c6d064b04839e68ad47a46a128"},
    {Encoding::q4_k, 0x644c93eeu, 1.3788604736328125f, 3.998321533203125f,
     "451ad8a121f69e2ab2b934bad0b6c68f6258e79674a795879f98618dc27a18e946f5bf3f7064d5fd55069c8a61cf"
     "950d0556610bc2756159781d28d9b779797823b574df2bfde02adb348c8aec32a52fdbfaab624ef7dd8ddb49b7e0"
     "97bd118f7064a4f9825f27920cde517690a2a1c4f3a81dbba9c8351917990316134e1ec81d560059d676ca1affc5"
     "11f9633cd88deb2436a381b782953715f657677c7e600dcbfff5ff8f04de554945059576d5ccaedf122f6a417402"
     "58d9f176db837cee5f3c6cf6538c222f256f07842227ba11fdad66954e01bca20044f8fe00a9ba18a07b8f5fe5e0"
     "d1c0af148885f366b7486e4a5bf49f0c08670e17f819c226fce24d3e53a99a44d22393d583a26cd6df59525801aa"
     "e68c99732cb8981b4ca47a68"},
    {Encoding::q5_k, 0x14e13dddu, 0.375823974609375f, -24.968231201171875f,
     "200f4ea2e5c93dc1476bb40d1cd38af3de71a31aa04dff9f72b4c591c2da1f969e2364a752f9571ae990bc0a579e"
     "9c53a672f776a15864b993aef9ef3b2ab53835f513a852b93120e1cd279956b6ce4b1024f8d636694a8991b580a9"
     "a5f7bcc2ca414772db2e7c9be9fefa2895db1d2ff31c6fc681da97a91e8bc42f8af32dd9c60f0f434813f96f0ec9"
     "c830d18d0804164ed17ae95575c9e2dc9113bd82f63caf4e6b5937eb0e6783a12ba918d43f958aa8c303f65cb190"
     "e4893ceedb9d06b05507f8dc7e9c09db3afca2a01dbc912ff34598c5f5168882c959de8031baf4b5dc230f54b63e"
     "b109d7a777493db4d1a65eb776d1100abd59f14f8139cc44c5e52a4e511949177a6474b387cba1faf0a52a05cc6c"
     "4890a57e61a687e5bfacf671b808431e5deaec194fde8f4631857517a34522913cd1a43327331b39afac793d8b5e"
     "725a61a2e12107a2433aef70a30ce70feb619252276c3b98ab95612ca06e"},
    {Encoding::q6_k, 0xacd92b3cu, -10.76300048828125f, 2.9388427734375f,
     "80e9433358d4f78dd05c6ce5bfc4a8fc30a167dcac6651bf6c2361eec34ab00df9d8ec237f9af57d9d6594f1edf3"
     "ae15492adc83098d959c2cc622e05232a3c61683f18c8fb9652d99af39007c513d54f564e48406349d41d5786d35"
     "b8287c7655824f4c03feeab69db033cdfe322300c60009d9c780710e0ddfdf5ff8e7411397083abbc3efddc36604"
     "6e752fce915c1d72308f2678cc83ca2c0f3e350175cd2b627322191715a5c0bbcb2578289af0b81c158e430b0ab6"
     "3ee35450f01bd894d7a61b1e342153d3a7786374aa0d73f3d8a1dc9449fffc1f2e7dbcedc5e6f2157b2cf2a2c7db"
     "fade8bb06c1948ae06103a25dcbb63949a249eaf069d5a74895000657de76b042fa410fb54a6787cfa195bbe005d"
     "288b9cdaabbf0f738fedb27ceb1402aae88157cc08dbd7c2b62e84f0a1bec45cb16a55a881e6de76d01e76b37d1c"
     "7949535b848d984031b16b5754f44c8b2f3973a2685229531ae2169cd5cefd5f064680e5c92c54edec53aec71f65"
     "4cefc02badb50343957484a65298df875d68d9270c3fe5ae9fbcf949475ca6d6d28586a5a1e8ed9f2becae729710"
     "c080e99c869b"},
    {Encoding::iq4_nl, 0x34932cc8u, -1.9039535522460938f, 0.15105438232421875f,
     "ad239df023cfa6e212394e8e4027ce7b8288f321c5d487be47689911ea12414b3c037793"},
    {Encoding::iq4_xs, 0xb15a060fu, 2.48870849609375f, -7.6285858154296875f,
     "8da4f64ee46d95f775b5ceee0c35098b1cbdad71a16591e3f5bf874482641adaba0881799f78c2a68c717b8cd141"
     "0de3f08e0c43b40ff75516f9bb769cff19a5e67dc32b328174555c4ecc115a53a4831223cac24f5777a6315ccff5"
     "604f5d29a1dd2ed3b5c212545fda0b257a955d21c975420390cc1c5ba488fbbccc2a13e705b12491a6d2becb32a0"
     "ed0716e4c1df91c63f78cd903feed85235a86248732f92620f34cb7dd21629ee29b8ba37c0996e9bc0024a43422d"
     "5c1104d65d69ae71f42a7b6907080306697e34dec693997afb8ef913034facdc37f600a843e2106be8d5d39cbb7f"
     "1c5638117765ead98fc9d6a4f3e256b4476c238a7f569167dc983e60e1394f91e91fc546fb541ed93d4b"}};

TEST(QuantisedBlocks, DecodeToTheBitsOfThePackage) {
  for (const Golden& golden : kGoldens) {
    const Floats got =
        decoded(from_hex(golden.blocks), golden.encoding, 2 * block_elements(golden.encoding));
    EXPECT_EQ(got[1], golden.second) << name_of(golden.encoding);
    EXPECT_EQ(got.back(), golden.last) << name_of(golden.encoding);
    EXPECT_EQ(crc32c(got.data(), got.size() * sizeof(float)), golden.crc)
        << name_of(golden.encoding);
    EXPECT_TRUE(is_quantised(golden.encoding));
    EXPECT_TRUE(can_convert(golden.encoding, Encoding::bf16));
  }
  EXPECT_FALSE(is_quantised(Encoding::f64));
}

TEST(QuantisedBlocks, SmallBlocksHaveTheBytesOfThePackage) {
  const std::string values = from_hex(
      "6b1819bec80488bf1f28913dbd34583fb89e973f43c5edbee5b6963e56b201bf038191bf684318bfb9e9004057b4"
      "86bf689a1cbfef48bcbe97067a3f492dd53dcbd713bfa67c24bf4d4f533e81bc4d3e857de8bf09cd8b3d44591a3e"
      "86adae3eb6bfcabe0cbef13e46c395bf2149553e5a1a31400d26db3e11cd6ebfaa461a3f8b7c7e3f7b9a413f2f4e"
      "a8be2c44f63d7525963ed2514f40ce17f3bf5415bdbec11d8bbe8b2dabbe8b31b33dbac7913ffe77a0bf393c3ebe"
      "fe947cbf58201f3f5e02f03fd17480bfa0c719be7674c4be529b76bf4892e0be60c778bdc0dda4bf5e85423f942e"
      "70bf51020bc0737ae63d6ac584bea18c303fa0eb20bd3aa7993e");
  Floats from(64);
  std::memcpy(from.data(), values.data(), values.size());
  EXPECT_EQ(encoded(from, Encoding::q5_0), from_hex("89b1a73b33453146f0fbb903fee327d374f604e25adf7b"
                                                    "b2c477fe567b5c122f5f200962c152b0fa16d105fd"));
  EXPECT_EQ(encoded(from, Encoding::q8_0),
            from_hex("9425f9cf032736eb0ee9cce55cd0e4ef2d05e5e30909ad030710ee16ca0a7f14d51c8826271ef"
                     "3050b7fb6f2f5f3"
                     "032dcff9d9184ad9faf1daeffece1edbab04f61bfe0c"));
}

double root_mean_square_error(const Floats& a, const Floats& b) {
  double sum = 0;
  for (std::size_t i = 0; i < a.size(); ++i) sum += std::pow(double{a[i]} - double{b[i]}, 2);
  return std::sqrt(sum / static_cast<double>(a.size()));
}

/// Sixteen steps between the smallest (or zero) and the largest element of each 32, with exact
/// scales.
Floats rounded_within_range(const Floats& from) {
  Floats to;
  for (std::size_t at = 0; at < from.size(); at += 32) {
    const auto first = from.begin() + static_cast<std::ptrdiff_t>(at);
    const auto [low, high] = std::minmax_element(first, first + 32);
    const float base = std::min(0.0f, *low), step = (*high - base) / 15;
    for (int i = 0; i < 32; ++i) to.push_back(std::round((first[i] - base) / step) * step + base);
  }
  return to;
}

// GGML's own encoder has errors of 0.001431 and 0.03148 for such numbers.
TEST(QuantisedBlocks, FourBitsAreBetterThanRoundingWithinTheRange) {
  std::mt19937_64 random(7);
  std::normal_distribution<float> normal(0, 0.02f);
  std::uniform_real_distribution<float> uniform(-1, 1);
  Floats weights(256 * 64), even(256 * 64);
  for (float& x : weights) x = normal(random);
  for (float& x : even) x = uniform(random);
  for (const Floats& from : {weights, even}) {
    const Floats got = decoded(encoded(from, Encoding::q4_k), Encoding::q4_k, std::ssize(from));
    const double error = root_mean_square_error(got, from);
    EXPECT_LT(error, 0.93 * root_mean_square_error(rounded_within_range(from), from));
  }
}

// GGML's own encoder has an error of 0.000355 for such numbers.
TEST(QuantisedBlocks, SixBitsAreBetterThanSymmetricRounding) {
  std::mt19937_64 random(7);
  std::normal_distribution<float> normal(0, 0.02f);
  Floats from(256 * 64), rounded;
  for (float& x : from) x = normal(random);
  for (std::size_t at = 0; at < from.size(); at += 16) {
    const auto first = from.begin() + static_cast<std::ptrdiff_t>(at);
    float largest = 0;
    for (int i = 0; i < 16; ++i) largest = std::max(largest, std::abs(first[i]));
    const float step = largest / 31;
    for (int i = 0; i < 16; ++i) rounded.push_back(std::round(first[i] / step) * step);
  }
  const Floats got = decoded(encoded(from, Encoding::q6_k), Encoding::q6_k, std::ssize(from));
  EXPECT_LT(root_mean_square_error(got, from), 0.98 * root_mean_square_error(rounded, from));
  EXPECT_EQ(decoded(encoded(Floats(256, 0), Encoding::q6_k), Encoding::q6_k, 256), Floats(256, 0));
  // Steps of -32 to 31, whose scales are all that of the block.
  Floats grid(256);
  for (std::size_t i = 0; i < grid.size(); ++i)
    grid[i] = static_cast<float>(i % 16 == 0 ? -32 : static_cast<int>(i % 64) - 32) / 128;
  const Floats same = decoded(encoded(grid, Encoding::q6_k), Encoding::q6_k, 256);
  for (std::size_t i = 0; i < grid.size(); ++i) EXPECT_NEAR(same[i], grid[i], 2e-3) << i;
}

TEST(QuantisedBlocks, FourBitsKeepNumbersOnTheirGrid) {
  // A scale of 63 units and a minimum of 31 units of 1/256, and every step occurs.
  Floats from(256);
  for (std::size_t i = 0; i < from.size(); ++i)
    from[i] = static_cast<float>(i % 16 * 63) / 256 - 31.0f / 256;
  const Floats got = decoded(encoded(from, Encoding::q4_k), Encoding::q4_k, 256);
  for (std::size_t i = 0; i < from.size(); ++i) EXPECT_NEAR(got[i], from[i], 2e-4) << i;
  EXPECT_EQ(decoded(encoded(Floats(256, 0), Encoding::q4_k), Encoding::q4_k, 256), Floats(256, 0));
  // The rounding of one scale to f16.
  for (const float number : {-0.3f, 0.3f})
    for (const float x : decoded(encoded(Floats(256, number), Encoding::q4_k), Encoding::q4_k, 256))
      EXPECT_NEAR(x, number, 0.3f * 0x1p-11f);
}

TEST(QuantisedBlocks, RefuseWhatTheyCannotHold) {
  for (const Encoding encoding : {Encoding::q8_0, Encoding::q5_0, Encoding::q4_k, Encoding::q6_k}) {
    EXPECT_TRUE(can_encode(encoding));
    Floats from(512, 1);
    from[300] = std::numeric_limits<float>::quiet_NaN();
    encoded(from, encoding, 300);
    from[300] = 1e30f;
    encoded(from, encoding, block_elements(encoding) == 256 ? 256 : 288);
  }
  EXPECT_FALSE(can_encode(Encoding::q5_k));
  EXPECT_FALSE(can_encode(Encoding::f32));
  EXPECT_FALSE(can_convert(Encoding::f32, Encoding::q5_k));
  EXPECT_TRUE(can_convert(Encoding::f64, Encoding::q4_k));
}

}  // namespace
}  // namespace choir
