// An RPC server in another network namespace, which is as good as another machine: reached over a
// pair of virtual interfaces that can be unplugged.
#include <gmock/gmock.h>
#include <unistd.h>

#include "worker_fixture.h"

namespace test {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

// Runs in a network namespace of its own and makes the server's; so nothing of them outlives it.
// $FOLDER takes what is written, $WHEN_LOADED is done while the run computes. The arguments are the
// run's.
constexpr const char* kScript = R"sh(
set -e
unshare --net sh -c '
  until ip link show far > /dev/null 2>&1; do sleep 0.02; done
  ip address add 10.99.0.2/30 dev far
  ip link set far up
  exec "$SERVER" --host 10.99.0.2 --port 50052 --threads 1' > "$FOLDER/server" 2>&1 &
server=$!
trap 'kill -9 $server 2> /dev/null' EXIT
while [ "$(readlink /proc/$server/ns/net)" = "$(readlink /proc/$$/ns/net)" ]; do sleep 0.02; done
ip link add near type veth peer name far netns $server
ip address add 10.99.0.1/30 dev near
ip link set near up
until grep -q '0200630A:C384 [0-9A-F:]* 0A' /proc/$server/net/tcp; do sleep 0.02; done
"$@" > "$FOLDER/out" 2> "$FOLDER/err" &
run=$!
until grep -q 'expert-split. plan' "$FOLDER/err"; do
  kill -0 $run
  sleep 0.02
done
eval "$WHEN_LOADED"
wait $run
)sh";

// In front of a command: its namespace, with the privileges of root or of a user namespace.
std::vector<std::string> Unshare() {
  std::vector<std::string> words = {"unshare", "--net"};
  if (::geteuid() != 0) words.insert(words.end(), {"--user", "--map-root-user"});
  return words;
}

class RpcNamespaceTest : public WorkerTest {
 protected:
  void SetUp() override {
    WorkerTest::SetUp();
    std::vector<std::string> words = Unshare();
    words.insert(words.end(),
                 {"sh", "-c", "ip link add near type veth peer name far && unshare --net true"});
    const ProgramResult made = RunProgram("/usr/bin/env", words);
    if (made.status != 0) {
      GTEST_SKIP() << "network namespaces cannot be made here (" << made.err
                   << "): run as root, or where user namespaces are allowed";
    }
  }

  Json RunThere(const std::string& when_loaded) {
    std::vector<std::string> words = Unshare();
    words.insert(words.end(), {"sh", "-c", kScript, "sh", EXPERT_SPLIT_BINARY});
    const std::vector<std::string> run = Words({"--targets", kTarget + "=50%,cpu", "-n", "400",
                                                "--ctx", "512", "--worker-timeout", "2", "--json"});
    words.insert(words.end(), run.begin(), run.end());
    const ProgramResult result = RunProgram(
        "/usr/bin/env", words,
        {kNoVulkan, "SERVER=" GGML_RPC_SERVER, "FOLDER=" + folder_, "WHEN_LOADED=" + when_loaded});
    EXPECT_EQ(result.status, 0) << result.err << Written("err") << Written("server");
    return Json::parse(Written("out"), nullptr, false);
  }

  const std::string kTarget = "rpc:10.99.0.2:50052";
};

TEST_F(RpcNamespaceTest, OwnsExperts) {
  const Json run = RunThere("true");
  EXPECT_THAT(run["lost"], IsEmpty());
  EXPECT_GT(run["targets"][0]["rows"], 0);
  EXPECT_EQ(run["tokens"].size(), 400U);
}

TEST_F(RpcNamespaceTest, ACutConnectionCostsAMomentAndNoToken) {
  const Json run = RunThere("ip link set near down");
  EXPECT_THAT(run["lost"], ElementsAre(kTarget));
  EXPECT_EQ(run["targets"][0]["units"], 0);
  EXPECT_EQ(run["tokens"].size(), 400U);
}

}  // namespace
}  // namespace test
