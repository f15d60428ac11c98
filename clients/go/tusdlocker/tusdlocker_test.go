package tusdlocker_test

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/tus/tusd/v2/pkg/filestore"
	"github.com/tus/tusd/v2/pkg/handler"

	tenure "tenure.example/tenure"
	"tenure.example/tenure/internal/daemontest"
	"tenure.example/tenure/tusdlocker"
)

// TestMain is also a tusd server: the test starts it twice, as two processes on one directory.
func TestMain(m *testing.M) {
	if directory := os.Getenv("TUSD_DIRECTORY"); directory != "" {
		serve(directory)
		return
	}
	os.Exit(m.Run())
}

func serve(directory string) {
	must := func(err error) {
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
	}
	client, err := tenure.New(os.Getenv("TENURE_URL"))
	must(err)
	composer := handler.NewStoreComposer()
	filestore.New(directory).UseIn(composer)
	tusdlocker.New(client).UseIn(composer)
	tusd, err := handler.NewHandler(handler.Config{
		BasePath: "/files/", StoreComposer: composer,
	})
	must(err)
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	must(err)
	fmt.Println(listener.Addr())
	// The server ends with the test, however that ends.
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		os.Exit(0)
	}()
	must(http.Serve(listener, http.StripPrefix("/files/", tusd)))
}

// startServers starts two tusd servers on one store and returns their addresses.
func startServers(t *testing.T) (one, two, directory string) {
	t.Helper()
	daemon := daemontest.Start(t)
	directory = t.TempDir()
	var addresses []string
	for range 2 {
		command := exec.Command(os.Args[0])
		command.Env = append(os.Environ(), "TUSD_DIRECTORY="+directory, "TENURE_URL="+daemontest.URL(daemon))
		// tusd logs every request to standard output; the first line is the address.
		command.Stderr = io.Discard
		stdin, err := command.StdinPipe()
		if err != nil {
			t.Fatal(err)
		}
		stdout, err := command.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := command.Start(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			stdin.Close()
			_ = command.Wait()
		})
		address, err := bufio.NewReader(stdout).ReadString('\n')
		if err != nil {
			t.Fatal(err)
		}
		addresses = append(addresses, strings.TrimSpace(address))
	}
	return addresses[0], addresses[1], directory
}

func request(t *testing.T, method, url string, body []byte, headers ...string) (*http.Response, []byte) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, method, url, bytes.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Tus-Resumable", "1.0.0")
	for at := 0; at < len(headers); at += 2 {
		r.Header.Set(headers[at], headers[at+1])
	}
	answer, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	read, err := io.ReadAll(answer.Body)
	if err != nil {
		t.Fatal(err)
	}
	return answer, read
}

// create makes an upload on a server and returns its id.
func create(t *testing.T, server string, length int) string {
	t.Helper()
	answer, _ := request(t, "POST", "http://"+server+"/files/", nil, "Upload-Length", strconv.Itoa(length))
	if answer.StatusCode != http.StatusCreated {
		t.Fatal(answer.Status)
	}
	return filepath.Base(answer.Header.Get("Location"))
}

// halfOpen sends the head of a PATCH and a part of its body, and leaves the connection open. It returns
// when the server has stored the part.
func halfOpen(t *testing.T, server, directory, id string, part []byte, length int) net.Conn {
	t.Helper()
	connection, err := net.Dial("tcp", server)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { connection.Close() })
	fmt.Fprintf(connection, "PATCH /files/%s HTTP/1.1\r\nHost: %s\r\nTus-Resumable: 1.0.0\r\nUpload-Offset: 0\r\n"+
		"Content-Type: application/offset+octet-stream\r\nContent-Length: %d\r\n\r\n", id, server, length)
	if _, err := connection.Write(part); err != nil {
		t.Fatal(err)
	}
	for deadline := time.Now().Add(30 * time.Second); ; {
		stored, err := os.Stat(filepath.Join(directory, id))
		if err == nil && stored.Size() == int64(len(part)) {
			return connection
		}
		if time.Now().After(deadline) {
			t.Fatal("the server does not store the part", err)
		}
	}
}

// answerOf returns the status of the answer to a half-open request after the rest was sent.
func answerOf(t *testing.T, connection net.Conn, rest []byte) int {
	t.Helper()
	go func() { _, _ = connection.Write(rest) }()
	_ = connection.SetReadDeadline(time.Now().Add(30 * time.Second))
	answer, err := http.ReadResponse(bufio.NewReader(connection), nil)
	if errors.Is(err, os.ErrDeadlineExceeded) {
		t.Fatal("the request is still open")
	}
	if err != nil {
		return 0 // tusd may close the connection instead.
	}
	return answer.StatusCode
}

func offsetOf(t *testing.T, server, id string) int {
	t.Helper()
	answer, _ := request(t, "HEAD", "http://"+server+"/files/"+id, nil)
	if answer.StatusCode != http.StatusOK {
		t.Fatal(answer.Status)
	}
	offset, err := strconv.Atoi(answer.Header.Get("Upload-Offset"))
	if err != nil {
		t.Fatal(err)
	}
	return offset
}

func rounds(t *testing.T, otherwise int) int {
	t.Helper()
	if text := os.Getenv("TENURE_ROUNDS"); text != "" {
		number, err := strconv.Atoi(text)
		if err != nil {
			t.Fatal(err)
		}
		return number
	}
	return otherwise
}

// A client that lost its connection resumes on the other server although the first one still waits for
// the rest of its request. Every byte arrives once.
func TestAHalfOpenUploadResumesOnTheOtherServer(t *testing.T) {
	one, two, directory := startServers(t)
	longest := time.Duration(0)
	for range rounds(t, 20) {
		data := make([]byte, 1000+rand.IntN(100_000))
		for at := range data {
			data[at] = byte(rand.Uint32())
		}
		id := create(t, one, len(data))
		cut := 1 + rand.IntN(len(data)-2)
		first := halfOpen(t, one, directory, id, data[:cut], len(data))
		began := time.Now()
		// The HEAD takes the upload away from the open request, which stores what it has read.
		offset := offsetOf(t, two, id)
		if offset > cut {
			t.Fatalf("offset %d, sent %d", offset, cut)
		}
		answer, _ := request(t, "PATCH", "http://"+two+"/files/"+id, data[offset:],
			"Upload-Offset", strconv.Itoa(offset), "Content-Type", "application/offset+octet-stream")
		longest = max(longest, time.Since(began))
		if answer.StatusCode != http.StatusNoContent {
			t.Fatal(answer.Status)
		}
		// The first request has ended and can write nothing more.
		if status := answerOf(t, first, data[cut:]); status == http.StatusNoContent {
			t.Fatal("both requests succeeded")
		}
		// GET on the first server: it has the same store.
		answer, read := request(t, "GET", "http://"+one+"/files/"+id, nil)
		if answer.StatusCode != http.StatusOK || !bytes.Equal(read, data) {
			t.Fatalf("%s, %d bytes of %d", answer.Status, len(read), len(data))
		}
		one, two = two, one
	}
	t.Logf("longest resume: %v", longest)
}

// DELETE on one server ends a half-open PATCH on the other.
func TestADeleteDuringAHalfOpenUpload(t *testing.T) {
	one, two, directory := startServers(t)
	for range 5 {
		id := create(t, one, 1000)
		first := halfOpen(t, one, directory, id, make([]byte, 400), 1000)
		answer, _ := request(t, "DELETE", "http://"+two+"/files/"+id, nil)
		if answer.StatusCode != http.StatusNoContent {
			t.Fatal(answer.Status)
		}
		if status := answerOf(t, first, make([]byte, 600)); status/100 == 2 {
			t.Fatal("the first request succeeded after the DELETE:", status)
		}
		for _, server := range []string{one, two} {
			if answer, _ := request(t, "HEAD", "http://"+server+"/files/"+id, nil); answer.StatusCode != http.StatusNotFound {
				t.Fatal(answer.Status)
			}
		}
	}
}

// The contract of handler.Lock: requestUnlock, ErrLockTimeout, any id, and a lost lock.
func TestTheLocker(t *testing.T) {
	daemon := daemontest.Start(t)
	client, err := tenure.New(daemontest.URL(daemon))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = client.Close() })
	locker := tusdlocker.New(client)
	for _, id := range []string{"a", "a/b", "a+b/c d", "ä", "..", "%2F", strings.Repeat("x", 200)} {
		one, err := locker.NewLock(id)
		if err != nil {
			t.Fatal(err)
		}
		asked := make(chan struct{}, 1)
		if err := one.Lock(context.Background(), func() { asked <- struct{}{} }); err != nil {
			t.Fatalf("%q: %v", id, err)
		}
		two, _ := locker.NewLock(id)
		ctx, cancel := context.WithTimeout(context.Background(), 100*time.Millisecond)
		if err := two.Lock(ctx, func() {}); !errors.Is(err, handler.ErrLockTimeout) {
			t.Fatalf("%q: %v", id, err)
		}
		cancel()
		select {
		case <-asked:
		case <-time.After(30 * time.Second):
			t.Fatal("the holder was not asked")
		}
		if err := one.Unlock(); err != nil {
			t.Fatal(err)
		}
		if err := one.Unlock(); err == nil {
			t.Fatal("unlocked twice")
		}
		if err := two.Lock(context.Background(), func() {}); err != nil {
			t.Fatal(err)
		}
		if err := two.Unlock(); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := locker.NewLock(""); err == nil {
		t.Fatal("an empty id")
	}
	// A lock that cannot be renewed: the request must end.
	locker.TTL = time.Second
	lost, _ := locker.NewLock("lost")
	asked := make(chan struct{}, 1)
	if err := lost.Lock(context.Background(), func() { asked <- struct{}{} }); err != nil {
		t.Fatal(err)
	}
	daemon.Stop()
	select {
	case <-asked:
	case <-time.After(30 * time.Second):
		t.Fatal("the request goes on without its lock")
	}
	daemon.Continue()
}
