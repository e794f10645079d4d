// Experts in other processes: the same text, whatever becomes of the workers, and nothing left
// behind.
#include <gmock/gmock.h>

#include "worker_fixture.h"

namespace test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

TEST_F(WorkerTest, ExpertsInWorkersGiveTheTokensOfCpu) {
  for (const char* const model : {"tiny-f32", "tiny-q8_0"}) {
    model_ = ModelPath(model);
    for (const char* const repack : {"auto", "off"}) {
      const auto run = [&](const std::string& targets) {
        return Run({"--targets", targets, "-n", "24", "--repack", repack});
      };
      const Json cpu = run("cpu");
      for (const auto& [targets, path] : {std::pair("worker(cpu)=50%,cpu", "hot-cold"),
                                          std::pair("worker(cpu)=30%,worker(cpu)=30%,cpu", "multi"),
                                          std::pair("worker(cpu:0)=50%,cpu", "hot-cold"),
                                          std::pair("cpu=20%,worker(cpu)", "hot-cold")}) {
        const Json split = run(targets);
        EXPECT_EQ(split["tokens"], cpu["tokens"]) << model << " " << repack << " " << targets;
        EXPECT_EQ(split["path"], path);
        EXPECT_THAT(split["lost"], IsEmpty());
        std::uint64_t rows = 0;
        for (const Json& target : split["targets"]) {
          EXPECT_GT(target["rows"], 0) << target;
          rows += target["rows"].get<std::uint64_t>();
        }
        EXPECT_EQ(rows, cpu["targets"][0]["rows"]);
      }
    }
  }
}

TEST_F(WorkerTest, AWorkerThatSomebodyElseStartedServesOneRunAfterAnother) {
  const Json cpu = Run({"--targets", "cpu", "-n", "12"});
  base::ChildProcess worker = StartWorker("cpu");
  for (const char* const capacity : {"=50%", "=1MiB", ""}) {
    const Json split = Run({"--targets", "unix:" + socket() + capacity + ",cpu", "-n", "12"});
    EXPECT_EQ(split["tokens"], cpu["tokens"]) << capacity;
    EXPECT_GT(split["targets"][0]["rows"], 0);
  }
  Stop(worker);
}

TEST_F(WorkerTest, AListeningWorkerEndsInOrderWhenItIsAskedTo) {
  for (const auto& [signal, end] :
       {std::pair(SIGTERM, "exited with status 0"), std::pair(SIGINT, "exited with status 130")}) {
    base::ChildProcess worker = StartWorker("cpu");
    base::ChildProcess run = StartRun(
        {"--targets", "unix:" + socket() + "=50%,cpu", "-n", "400", "--ctx", "512", "--json"});
    ASSERT_TRUE(HasLoaded()) << Written("err");
    ::kill(worker.pid(), signal);
    ASSERT_TRUE(worker.WaitForEnd(Deadline::After(seconds(60))));
    EXPECT_EQ(worker.end(), end);
    EXPECT_FALSE(std::filesystem::exists(socket()));
    ASSERT_TRUE(run.WaitForEnd(Deadline::After(seconds(120))));
    EXPECT_EQ(run.end(), "exited with status 0") << Written("err");
    EXPECT_EQ(Json::parse(Written("out"), nullptr, false)["lost"].size(), 1U);
    std::filesystem::remove(folder_ + "/err");
  }
}

TEST_F(WorkerTest, AWorkerWithAnotherModelIsRefusedWithBothNamed) {
  std::filesystem::create_symlink(ModelPath("tiny-q8_0"), folder_ + "/other.gguf");
  base::ChildProcess worker = StartWorker("cpu", folder_ + "/other.gguf");
  const ProgramResult result = RunExpertSplit(
      Words({"--targets", "unix:" + socket() + "=1MiB,cpu", "-n", "1"}), {kNoVulkan});
  ExpectOneErrorLine(result, 3, "has the model");
  EXPECT_THAT(result.err, ::testing::AllOf(HasSubstr("Q8_0"), HasSubstr("F32")));
  Stop(worker);
}

TEST_F(WorkerTest, AWorkerThatIsNotThereIsAnError) {
  ExpectOneErrorLine(
      RunExpertSplit(Words({"--targets", "unix:" + socket() + "=1MiB,cpu"}), {kNoVulkan}), 5,
      "there is no worker at");
}

TEST_F(WorkerTest, AWorkerHostsOneTarget) {
  for (const char* const target :
       {"worker(cpu)", "unix:/s", "rpc:h:1=1MiB", "cpu=1MiB", "cpu,vulkan:0"}) {
    ExpectOneErrorLine(
        RunExpertSplit({"worker", "--model", model_, "--target", target, "--listen", socket()},
                       {kNoVulkan}),
        2, "a worker hosts cpu, cpu:NODE, one device");
  }
  ExpectOneErrorLine(
      RunExpertSplit({"worker", "--model", model_, "--target", "vulkan:9", "--listen", socket()},
                     {kNoVulkan}),
      2, "missing device");
  ExpectOneErrorLine(RunExpertSplit({"worker", "--model", model_, "--target", "cpu"}, {kNoVulkan}),
                     2, "--listen");
}

TEST_F(WorkerTest, ADeviceInAWorkerAgreesWithTheCpu) {
  const std::string text = folder_ + "/text";
  ASSERT_TRUE(base::WriteFileAtomically(text, std::string(300, 'a')));
  const auto perplexity = [&](const std::string& targets) {
    const ProgramResult result =
        RunExpertSplit({"perplexity", "--model", model_, "--threads", "1", "--targets", targets,
                        "--text", text, "--ctx", "128", "--json"},
                       {kTwoVulkan});
    EXPECT_EQ(result.status, 0) << result.err;
    return Json::parse(result.out, nullptr, false)["nll"].get<double>();
  };
  EXPECT_NEAR(perplexity("worker(vulkan:0)=50%,cpu"), perplexity("cpu"), 1e-3);
}

TEST_F(WorkerTest, AKilledWorkerChangesNothingInTheText) {
  const std::vector<std::string> tokens = {"-n", "600", "--ctx", "1024", "--json"};
  std::vector<std::string> words = {"--targets", "worker(cpu)=30%,worker(cpu)=30%,cpu"};
  words.insert(words.end(), tokens.begin(), tokens.end());
  base::ChildProcess run = StartRun(words);
  ASSERT_TRUE(HasLoaded());
  const std::vector<pid_t> workers = Workers();
  ASSERT_EQ(workers.size(), 2U);
  EXPECT_TRUE(CommandLine(workers[0])[0].ends_with("expert-split"));
  ::kill(workers[1], SIGKILL);
  ASSERT_TRUE(run.WaitForEnd(Deadline::After(seconds(120))));
  EXPECT_EQ(run.end(), "exited with status 0") << Written("err");
  const Json lost = Json::parse(Written("out"), nullptr, false);
  EXPECT_THAT(lost["lost"], ElementsAre("worker(cpu)#2"));
  EXPECT_EQ(lost["targets"][1]["units"], 0);
  EXPECT_EQ(lost["path"], "hot-cold");
  EXPECT_THAT(Written("err"), HasSubstr("was killed by signal 9"));
  EXPECT_THAT(Written("err"), HasSubstr("to cpu"));
  const Json cpu = Run({"--targets", "cpu", "-n", "600", "--ctx", "1024"});
  EXPECT_EQ(lost["tokens"], cpu["tokens"]);
}

TEST_F(WorkerTest, AWorkerKilledInALongPromptChangesNothingInTheText) {
  prompt_ = std::string(6000, 'a');
  const std::vector<std::string> more = {"--batch", "16", "--ctx", "8192", "-n", "8"};
  std::vector<std::string> words = {"--targets", "worker(cpu)=50%,cpu", "--json"};
  words.insert(words.end(), more.begin(), more.end());
  base::ChildProcess run = StartRun(words);
  ASSERT_TRUE(HasLoaded());
  for (const pid_t worker : Workers()) ::kill(worker, SIGKILL);
  ASSERT_TRUE(run.WaitForEnd(Deadline::After(seconds(120))));
  EXPECT_EQ(run.end(), "exited with status 0") << Written("err");
  const Json lost = Json::parse(Written("out"), nullptr, false);
  EXPECT_THAT(lost["lost"], ElementsAre("worker(cpu)"));
  words = {"--targets", "cpu"};
  words.insert(words.end(), more.begin(), more.end());
  EXPECT_EQ(lost["tokens"], Run(words)["tokens"]);
}

TEST_F(WorkerTest, AStoppedWorkerIsLostAtTheDeadline) {
  base::ChildProcess run = StartRun({"--targets", "worker(cpu)=50%,cpu", "-n", "300", "--ctx",
                                     "512", "--worker-timeout", "1", "--json"});
  ASSERT_TRUE(HasLoaded());
  const std::vector<pid_t> workers = Workers();
  ASSERT_EQ(workers.size(), 1U);
  ::kill(workers[0], SIGSTOP);
  ASSERT_TRUE(run.WaitForEnd(Deadline::After(seconds(120))));
  EXPECT_EQ(run.end(), "exited with status 0") << Written("err");
  const Json lost = Json::parse(Written("out"), nullptr, false);
  EXPECT_THAT(lost["lost"], ElementsAre("worker(cpu)"));
  EXPECT_EQ(lost["tokens"], Run({"--targets", "cpu", "-n", "300", "--ctx", "512"})["tokens"]);
}

TEST_F(WorkerTest, ALossCanEndTheRequestInstead) {
  base::ChildProcess run = StartRun({"--targets", "worker(cpu)=50%,cpu", "-n", "900", "--ctx",
                                     "1024", "--on-worker-loss", "fail", "--json"});
  ASSERT_TRUE(HasLoaded());
  for (const pid_t worker : Workers()) ::kill(worker, SIGKILL);
  ASSERT_TRUE(run.WaitForEnd(Deadline::After(seconds(120))));
  EXPECT_EQ(run.end(), "exited with status 5");
  EXPECT_THAT(Written("err"),
              HasSubstr("error: worker(cpu): the other side closed the connection"));
  EXPECT_EQ(Written("out"), "");
}

TEST_F(WorkerTest, ALossThatNobodyHasRoomForEndsTheRequest) {
  base::ChildProcess run =
      StartRun({"--targets", "vulkan:0=1MiB,worker(cpu)", "-n", "900", "--ctx", "1024", "--json"},
               kTwoVulkan);
  ASSERT_TRUE(HasLoaded());
  for (const pid_t worker : Workers()) ::kill(worker, SIGKILL);
  ASSERT_TRUE(run.WaitForEnd(Deadline::After(seconds(120))));
  EXPECT_EQ(run.end(), "exited with status 5");
  EXPECT_THAT(Written("err"), HasSubstr("no other target has room"));
  EXPECT_THAT(Written("err"), HasSubstr("add cpu to the end of --targets"));
}

TEST_F(WorkerTest, CtrlCEndsTheWorkersToo) {
  const ProgramResult result = InterruptExpertSplit(
      Words({"--targets", "worker(cpu)=50%,cpu", "-n", "900", "--ctx", "1024"}), {kNoVulkan},
      Stream::kOut, "");
  EXPECT_EQ(result.status, 130) << result.err;
  EXPECT_THAT(result.err, HasSubstr("error: stopped"));
}

TEST_F(WorkerTest, WorkersEndWithAParentThatIsKilledEvenStoppedOnes) {
  base::ChildProcess run =
      StartRun({"--targets", "worker(cpu)=30%,worker(cpu)=30%,cpu", "-n", "900", "--ctx", "1024"});
  ASSERT_TRUE(HasLoaded());
  const std::vector<pid_t> workers = Workers();
  ASSERT_EQ(workers.size(), 2U);
  ::kill(workers[0], SIGSTOP);
  run.Kill();
  EXPECT_TRUE(Eventually([this] { return Workers().empty(); }));
}

}  // namespace
}  // namespace test
