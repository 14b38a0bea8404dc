package approvallog

const workerVariable = "APPROVALLOG_TEST_WORKER"

func runWorker(string) int { return 1 }
