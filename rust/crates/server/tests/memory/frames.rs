//! The memory of requests' frames.

use std::io::Write;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::Duration;

use bytes::Bytes;
use logcore_protocol::{decode_response, decode_response_header};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::common::{int, produced};
use super::{Allocated, MEGABYTE, ONE_AT_A_TIME, TIMEOUT, check_served, large_frame, limit_files, server};

/// A connection whose kernel buffer is small.
async fn connect(port: u16) -> tokio::net::TcpStream {
    let socket = tokio::net::TcpSocket::new_v4().unwrap();
    socket.set_send_buffer_size(65_536).unwrap();
    let address = std::net::SocketAddr::from(([127, 0, 0, 1], port));
    socket.connect(address).await.unwrap()
}

// If this failed, many clients could use all of the machine's memory, or could wait for each other for ever.
#[test]
fn a_thousand_large_requests_share_the_frame_budget() {
    let _alone = ONE_AT_A_TIME.lock();
    limit_files(4000);
    let server = server();
    let frame = large_frame(&mut server.client());
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    let allocated = Allocated::since_now();
    let port = server.port;
    let frame = &*Box::leak(frame.into_boxed_slice());
    runtime.block_on(async {
        let clients: Vec<_> = (0..1000)
            .map(|_| {
                tokio::spawn(async move {
                    let mut stream = connect(port).await;
                    stream.write_all(frame).await?;
                    let mut size = [0; 4];
                    stream.read_exact(&mut size).await?;
                    let mut answer = vec![0; u32::from_be_bytes(size) as usize];
                    stream.read_exact(&mut answer).await?;
                    let mut answer = Bytes::from(answer);
                    decode_response_header(0, 9, &mut answer).unwrap();
                    let answer = produced(&decode_response(0, 9, &answer).unwrap());
                    assert_eq!(int(&answer, "error_code"), 0, "{answer:?}");
                    Ok::<_, std::io::Error>(())
                })
            })
            .collect();
        for client in clients {
            let served = tokio::time::timeout(TIMEOUT, client).await.unwrap();
            if let Err(error) = served.unwrap() {
                panic!("{error}: {:?}", server.server.take_log_lines());
            }
        }
    });
    let end = server.server.offsets("t", 0).unwrap().log_end;
    assert_eq!(end, 1000, "{:?}", server.server.take_log_lines());
    // The tasks of both ends are counted too, and a buffer is copied as it grows.
    let most = 8 * MEGABYTE + 1000 * 32 * 1024 + 4 * MEGABYTE;
    assert!(allocated.peak() <= most, "{} > {most}", allocated.peak());
    eprintln!("a thousand requests of 1 MiB used {} bytes", allocated.peak());
}

// If this failed, each request would be copied before it is written.
#[test]
fn a_large_request_has_one_buffer() {
    let _alone = ONE_AT_A_TIME.lock();
    let server = server();
    let mut client = server.client();
    let frame = large_frame(&mut client);
    for _ in 0..3 {
        let allocated = Allocated::since_now();
        client.send_raw(&frame);
        let (_, answer) = client.receive(0, 9);
        assert_eq!(int(&produced(&answer), "error_code"), 0);
        let most = MEGABYTE * 3 / 2;
        assert!(allocated.peak() <= most, "{} > {most}", allocated.peak());
    }
}

// If this failed, a few clients that send slowly could stop all producers, or fill the memory.
#[test]
fn slow_frames_are_closed_when_others_need_memory() {
    let _alone = ONE_AT_A_TIME.lock();
    let server = server();
    let mut honest = server.client();
    let frame = large_frame(&mut honest);
    let allocated = Allocated::since_now();
    let mut slow: Vec<_> = (0..12)
        .map(|_| {
            let stream = server.client().stream;
            stream.set_nonblocking(true).unwrap();
            stream
        })
        .collect();
    // Each sends as much of half a frame as the server reads. Then half of them send a byte now and then.
    let mut sent = vec![0; slow.len()];
    for _ in 0..200 {
        for (stream, sent) in slow.iter_mut().zip(&mut sent) {
            if let Ok(count) = stream.write(&frame[*sent..MEGABYTE / 2]) {
                *sent += count;
            }
        }
        check_served(&server);
    }
    honest.send_raw(&frame);
    let (served, is_served) = mpsc::channel::<()>();
    let dripping = std::thread::spawn(move || {
        let drip = Duration::from_millis(500);
        while is_served.recv_timeout(drip) == Err(RecvTimeoutError::Timeout) {
            for (stream, sent) in slow.iter_mut().zip(&mut sent).step_by(2) {
                // The server closes it at some time.
                *sent += stream.write(&frame[*sent..=*sent]).unwrap_or(0);
            }
        }
    });
    let (_, answer) = honest.receive(0, 9);
    assert_eq!(int(&produced(&answer), "error_code"), 0);
    drop(served);
    dripping.join().unwrap();
    server.wait_for_line("arrive too slowly");
    let most = 8 * MEGABYTE + 4 * MEGABYTE;
    assert!(allocated.peak() <= most, "{} > {most}", allocated.peak());
}
